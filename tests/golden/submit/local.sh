#!/usr/bin/env bash
#
# abci_2048_open: 512 nodes x 4 ranks, on local.
# Written by `rn50 submit`; may be edited and submitted by hand.
set -euo pipefail

start=/home/user/rn50
folder=results/job
home=/opt/rn50
python=/opt/rn50/.venv/bin/python
config=(results/job/config.yaml)
cd -- "$start"
export PYTHONPATH="$home${PYTHONPATH:+:$PYTHONPATH}"

: "${RN50_HOSTS:?a file with the names of the hosts, one a line, expected}"
# Output: $folder/job.log. Started again it goes on, and writes over nothing.
exec "$python" -m rn50.cli.entry launch --job="$folder" \
  --runs 5 -- "${config[@]}"
