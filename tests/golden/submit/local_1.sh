#!/usr/bin/env bash
#
# abci_2048_open: 1 nodes x 4 ranks, on local.
# Written by `rn50 submit`; may be edited and submitted by hand.
set -euo pipefail

start=/work/rn50
folder=results/abci_2048_open/job
home=/opt/rn50
python=/opt/rn50/.venv/bin/python
data=datasets/imagenet
system=ABCI_n1
runs=5

cd -- "$start"
exec >"$folder/job.log" 2>&1 </dev/null
trap 'exit 143' TERM INT
trap 'echo "$?" >"$folder/exit_code"' EXIT

# What the engines read. A variable that is set already stays: the user's wins.
default() {
  if [[ -n ${!1+set} && ${!1} != "$2" ]]; then
    printf 'kept from your environment: %s=%s\n' "$1" "${!1}"
  else
    export "$1=$2"
  fi
}
default HOROVOD_CYCLE_TIME 0.2
default HOROVOD_DISABLE_GROUP_FUSION 1
default MXNET_CUDNN_AUTOTUNE_DEFAULT 0
default NCCL_ALGO Ring
default OMP_NUM_THREADS 10
export PYTHONPATH="$home"

printf 'localhost slots=%s\n' 4 >"$folder/hosts"
if [[ $EUID -eq 0 ]]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
dataset=$data
ranks=(mpirun -np 4 --hostfile "$folder/hosts" --map-by ppr:4:node --bind-to none -x
  HOROVOD_CYCLE_TIME -x HOROVOD_DISABLE_GROUP_FUSION -x MXNET_CUDNN_AUTOTUNE_DEFAULT -x NCCL_ALGO
  -x OMP_NUM_THREADS -x PYTHONPATH "$home/scripts/bind.sh")
once=(env)

"${once[@]}" "$python" -m rn50.scripts.entry data prepare "$folder/config.yaml"

mkdir -p -- "$folder/results/$system/resnet"
failed=0
for ((n = 0; n < runs; n++)); do
  out=$folder/run_$n
  seed=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')
  "${once[@]}" "$python" -m rn50.scripts.steps begin "$folder/config.yaml" "$out" \
    --scheduler local --seed "$seed" --data "$dataset"
  code=0
  "${ranks[@]}" "$python" -m rn50.train "$out/config.yaml" --out "$out" \
    2>"$out/stderr.log" || code=$?
  end=0
  "${once[@]}" "$python" -m rn50.scripts.steps end "$out" "$code" || end=$?
  if [[ -f $out/result_0.txt ]]; then
    cp -- "$out/result_0.txt" "$folder/results/$system/resnet/result_$n.txt"
  fi
  # 1: the run ended short of its target, the next one may start; above: a rank failed.
  if [[ $end -gt 1 ]]; then
    exit "$end"
  fi
  failed=$((failed | end))
done
exit "$failed"
