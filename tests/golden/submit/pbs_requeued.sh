#!/usr/bin/env bash
#PBS -N j50-layers-at-s
#PBS -l select=512:ncpus=40:mpiprocs=4:ompthreads=10:ngpus=4
#PBS -l place=scatter:excl
#PBS -l walltime=01:00:00
#PBS -r y
#PBS -j oe
#
# 50-layers-at-scale: 512 nodes x 4 ranks, on pbs.
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
  --runs 5 -- "${config[@]}"
