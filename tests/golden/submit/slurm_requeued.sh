#!/usr/bin/env bash
#SBATCH --job-name=abci_2048_open
#SBATCH --nodes=512
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --time=01:00:00
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@75
#SBATCH --partition=batch
#SBATCH --gpus-per-node=4
#
# abci_2048_open: 512 nodes x 4 ranks, on slurm.
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
module load gcc/12
set -u

# Output: $folder/job.log. Started again it goes on, and writes over nothing.
exec "$python" -m rn50.cli.entry launch --job="$folder" \
  --requeue "scontrol requeue ${SLURM_JOB_ID:-}" \
  --launcher srun --runs 5 -- "${config[@]}"
