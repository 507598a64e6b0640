#!/usr/bin/env bash
#
# smoke: 1 node x 2 ranks, on local.
# As `rn50 submit` writes it. Edit what differs; submit it from the checkout:
#   bash launch/examples/smoke_local.sh
set -euo pipefail

start=$PWD
folder=results/smoke/$(date -u +%Y%m%dT%H%M%SZ)-$$
home=$start
python=$start/.venv/bin/python
config=(smoke)
cd -- "$start"
export PYTHONPATH="$home${PYTHONPATH:+:$PYTHONPATH}"

# Output: $folder/job.log. Started again it goes on, and writes over nothing.
exec "$python" -m rn50.cli.entry launch --job="$folder" \
  --runs 1 -- "${config[@]}"
