#!/usr/bin/env bash
#SBATCH --job-name=abci_2048_open
#SBATCH --nodes=512
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --time=01:00:00
#SBATCH --exclusive
#SBATCH --no-requeue
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

# What the engines read. A variable that is set already stays, and the run says so.
default() { export "$1=${!1-$2}"; }
default CUDA_MODULE_LOADING LAZY
default HOROVOD_CYCLE_TIME 0.2
default HOROVOD_DISABLE_GROUP_FUSION 1
default HOROVOD_TORUS_ALLREDUCE 1
default MXNET_CUDNN_AUTOTUNE_DEFAULT 0
default MXNET_CUDNN_LIB_CHECKING 0
default MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD 25
default MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD 999
default NCCL_IB_HCA =mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_6,mlx5_7,mlx5_8,mlx5_9
default NCCL_NET_GDR_LEVEL PXB
default OMP_NUM_THREADS 16

data=datasets/imagenet
mounts="$start:$start",/raid:/raid:ro
container=(--container-image='registry#rn50:gpu' --container-name=rn50
  --container-mounts="$mounts" --container-workdir="$start")
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-}"
ranks=(srun --mpi=pmix --kill-on-bad-exit=1 --nodes=512 --ntasks=2048 --ntasks-per-node=4
  --cpu-bind=none --export=ALL "${container[@]}" "$home/scripts/bind.sh")
per_node=(srun --mpi=pmix --kill-on-bad-exit=1 --nodes=512 --ntasks=512 --ntasks-per-node=1
  --cpu-bind=none --export=ALL)
once=(srun --nodes=1 --ntasks=1 "${container[@]}")

mkdir -p -- "$folder"
exec 9>>"$folder/.job.lock"
locked=0
flock -n 9 || locked=$?  # above 1: a file system without locks
if ((locked == 1)); then
  echo "rn50: error: $folder: in use by $(<"$folder/.job.lock")" >&2
  exit 2
fi
echo "process $$ on $HOSTNAME, job ${SLURM_JOB_ID:-}, since $(date -u +%FT%TZ)" >"$folder/.job.lock"
exec >>"$folder/job.log" 2>&1 </dev/null
# shellcheck disable=SC2317,SC2329  # called by the trap
finish() {
  code=$?
  # In place: a full disk has room for that.
  echo "$code" 1<>"$folder/exit_code" || true
  truncate -s "$((${#code} + 1))" "$folder/exit_code" || true
}
stopped='' child=''
# shellcheck disable=SC2317,SC2329  # called by the traps
stop() {
  stopped=$1
  if [[ -n $child ]]; then kill -TERM "$child" || true; else exit 143; fi
}
trap 'stop SIGTERM' TERM
trap 'stop SIGINT' INT
trap finish EXIT
echo running >"$folder/exit_code"
"${once[@]}" "$python" -m rn50.cli.entry data prepare -- "${config[@]}"

steps=("${once[@]}" "$python" -m rn50.launch.job_steps)
failed=0
for ((n = 0; n < 5; n++)); do
  out=$folder/run_$n code=0
  "${steps[@]}" begin "$out" "$data" "${config[@]}" || code=$?
  if ((code == 10 || code == 11)); then # this run ended in a start before this one
    failed=$((failed | (code - 10)))
    continue
  fi
  if ((code)); then exit "$code"; fi
  train=("$python" -m rn50.train "$out/config.yaml" --out "$out")
  if [[ -s $out/resume_from ]]; then # interrupted: on from its checkpoint
    train+=(--resume "$(<"$out/resume_from")")
  fi
  "${per_node[@]}" bash -c 'sync
    { echo 3 >/proc/sys/vm/drop_caches; } 2>/dev/null ||
      sudo -n sysctl -q vm.drop_caches=3'
  "${ranks[@]}" "${train[@]}" 2>"$out/stderr.log" &
  child=$!
  wait "$child" || code=$?
  if [[ -n $stopped ]]; then wait "$child" || code=$?; fi
  child='' end=0
  "${steps[@]}" end "$out" "$code" "$stopped" "$SECONDS" || end=$?
  if [[ -n $stopped ]]; then exit 143; fi
  # 1: short of its target, the next one may start; above: a rank failed.
  if ((end > 1)); then exit "$end"; fi
  failed=$((failed | end))
done
"${once[@]}" "$python" -m rn50.cli.entry log score \
  "$folder/results/NVIDIA_DGX_SuperPOD_A100_n512/resnet" || true
exit "$failed"
