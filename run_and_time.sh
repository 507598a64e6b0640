#!/usr/bin/env bash
# One timed run of one config, from JPEGs to a checked MLPerf log.
#   ./run_and_time.sh [CONFIG] [key=value ...]     default: config/quick.yaml
# The first time it sets the machine up (minutes); the data is drawn when it is missing.
set -euo pipefail
cd "$(dirname "$0")"
scripts/setup.sh
exec .venv/bin/rn50 launch "$@"
