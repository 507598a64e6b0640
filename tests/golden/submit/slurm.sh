#!/usr/bin/env bash
#SBATCH --job-name=abci_2048_open
#SBATCH --nodes=512
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --time=01:00:00
#SBATCH --exclusive
#SBATCH --no-requeue
#SBATCH --account=mlperf
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

# Output: $folder/job.log. Started again it goes on, and writes over nothing.
exec "$python" -m rn50.cli.entry launch --job="$folder" \
  --launcher srun --runs 5 -- "${config[@]}"
