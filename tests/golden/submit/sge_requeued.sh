#!/usr/bin/env bash
#$ -N abci_2048_open
#$ -S /bin/bash
#$ -cwd
#$ -j y
#$ -l h_rt=01:00:00
#$ -r y
#$ -l s_rt=3525
#$ -pe orte 8192
#
# abci_2048_open: 512 nodes x 4 ranks, on sge.
# Written by `rn50 submit`; may be edited and submitted by hand.
set -euo pipefail

start=/home/user/rn50
folder=results/job
home=/opt/rn50
python=/opt/rn50/.venv/bin/python
config=(results/job/config.yaml)
cd -- "$start"
export PYTHONPATH="$home${PYTHONPATH:+:$PYTHONPATH}"

set +u  # modules are not written for it
# shellcheck source=/dev/null
[[ -n $(type -t module) ]] || source "${MODULESHOME:-/usr/share/modules}/init/bash"
module load cuda/9.2 cudnn/7.5 nccl/2.4 openmpi/2.1.6
set -u

# Output: $folder/job.log. Started again it goes on, and writes over nothing.
exec "$python" -m rn50.cli.entry launch --job="$folder" \
  --requeue "exit 99" \
  --runs 5 -- "${config[@]}"
