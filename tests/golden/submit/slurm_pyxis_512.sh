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
# shellcheck disable=SC2016,SC2317,SC2329  # dollars meant as such; traps call functions
set -euo pipefail

start=/home/user/rn50
folder=results/job
home=/opt/rn50
python=/opt/rn50/.venv/bin/python
data=datasets/imagenet
system=NVIDIA_DGX_SuperPOD_A100_n512
config=(results/job/config.yaml)
runs=5

cd -- "$start"
mkdir -p -- "$folder"
exec >"$folder/job.log" 2>&1 </dev/null
# shellcheck disable=SC2329  # called by the trap
finish() {
  code=$?
  echo "$code" >"$folder/exit_code"
}
trap finish EXIT
# Asked to stop: the ranks are, they close their log, and the run is recorded as failed.
stopped='' child=''
# shellcheck disable=SC2329  # called by the trap
stop() {
  stopped=143
  if [[ -n $child ]]; then kill -TERM "$child" || true; else exit 143; fi
}
trap stop TERM INT

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
export PYTHONPATH="$home${PYTHONPATH:+:$PYTHONPATH}"

dataset=$data
mounts="$start:$start",/raid:/raid:ro
container=(--container-image='registry#rn50:gpu' --container-name=rn50
  --container-mounts="$mounts" --container-workdir="$start")
ranks=(srun --mpi=pmix --kill-on-bad-exit=1 --nodes=512 --ntasks=2048 --ntasks-per-node=4
  --cpus-per-task=16 --cpu-bind=none --export=ALL "${container[@]}" "$home/scripts/bind.sh")
per_node=(srun --nodes=512 --ntasks=512 --ntasks-per-node=1)
once=(srun --nodes=1 --ntasks=1 "${container[@]}")

"${once[@]}" "$python" -m rn50.scripts.entry data prepare "${config[@]}"

mkdir -p -- "$folder/results/$system/resnet"
failed=0
for ((n = 0; n < runs; n++)); do
  out=$folder/run_$n
  seed=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')
  "${once[@]}" "$python" -m rn50.scripts.steps begin "$out" \
    --scheduler slurm --seed="$seed" --data="$dataset" -- "${config[@]}"
  "${per_node[@]}" bash -c 'sync
    { echo 3 >/proc/sys/vm/drop_caches; } 2>/dev/null ||
      sudo -n sysctl -q vm.drop_caches=3'
  # The ranks drop the data set's caches themselves, and log it: cache_clear.
  "${ranks[@]}" "$python" -m rn50.train "$out/config.yaml" --out "$out" \
    2>"$out/stderr.log" &
  child=$! code=0
  wait "$child" || code=$?
  if [[ -n $stopped ]]; then
    wait "$child" || code=$?
  fi
  child='' end=0
  "${once[@]}" "$python" -m rn50.scripts.steps end "$out" "$code" "$stopped" || end=$?
  if [[ -f $out/result_0.txt ]]; then
    cp -- "$out/result_0.txt" "$folder/results/$system/resnet/result_$n.txt"
  fi
  # 1: the run ended short of its target, the next one may start; above: a rank failed.
  if [[ -n $stopped || $end -gt 1 ]]; then
    exit "${stopped:-$end}"
  fi
  failed=$((failed | end))
done
"${once[@]}" "$python" -m rn50.scripts.entry log score \
  "$folder/results/$system/resnet" || true
exit "$failed"
