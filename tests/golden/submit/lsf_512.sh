#!/usr/bin/env bash
#BSUB -J abci_2048_open
#BSUB -nnodes 512
#BSUB -W 01:00
#BSUB -P CSC000
#BSUB -q batch
#
# abci_2048_open: 512 nodes x 4 ranks, on lsf.
# Written by `rn50 submit`; may be edited and submitted by hand.
set -euo pipefail

start=/work/rn50
folder=results/abci_2048_open/job
home=/opt/rn50
python=/opt/rn50/.venv/bin/python
data=datasets/imagenet
system=ABCI_n512
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
default HOROVOD_TORUS_ALLREDUCE 1
default MXNET_CUDNN_AUTOTUNE_DEFAULT 0
default OMP_NUM_THREADS 10
export PYTHONPATH="$home"

stage=/mnt/bb/rn50/rn50_data
dataset=$stage
ranks=(jsrun -n 512 -r 1 -a 4 -c 40 -g 4 -b none "$home/scripts/bind.sh")
per_node=(jsrun -n 512 -r 1 -a 1 -c 40 -g 4 -b none)
once=(env)
on_each=(jsrun -n 512 -r 1 -a 1 -c 40 -g 4 -b none)

"${per_node[@]}" mkdir -p -- "$stage"
"${once[@]}" "$python" -m rn50.scripts.entry data prepare "$folder/config.yaml"
# Once a node: copied to its own disk, every byte checked there.
"${per_node[@]}" cp -ru -- "$data/." "$stage/"
"${on_each[@]}" "$python" -m rn50.scripts.entry data verify "$stage"

mkdir -p -- "$folder/results/$system/resnet"
failed=0
for ((n = 0; n < runs; n++)); do
  out=$folder/run_$n
  seed=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')
  "${once[@]}" "$python" -m rn50.scripts.steps begin "$folder/config.yaml" "$out" \
    --scheduler lsf --seed "$seed" --data "$dataset"
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
"${per_node[@]}" rm -rf -- "$stage"
exit "$failed"
