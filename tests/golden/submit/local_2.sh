#!/usr/bin/env bash
#
# abci_2048_open: 2 nodes x 4 ranks, on local.
# Written by `rn50 submit`; may be edited and submitted by hand.
# shellcheck disable=SC2016,SC2317,SC2329  # dollars meant as such; traps call functions
set -euo pipefail

start=/home/user/rn50
folder=results/job
home=/opt/rn50
python=/opt/rn50/.venv/bin/python
data=datasets/imagenet
system=NVIDIA_DGX-1_n2
config=(results/job/config.yaml)
runs=5

cd -- "$start"
# After a start whose runs have all ended (exit code 0 or 1) the next gets a folder of
# its own; after an interruption it goes on in the same, beside the log of that start.
first=$folder starts=1
while code=$(cat -- "$folder/exit_code" 2>/dev/null) && [[ $code =~ ^[01]$ ]]; do
  starts=$((starts + 1))
  folder=$first.$starts
done
mkdir -p -- "$folder"
# One start at a time: the lock goes with this script and what it started.
exec 9>>"$folder/.job.lock"
locked=0
flock -n 9 || locked=$?
if ((locked == 1)); then
  echo "rn50: error: $folder: in use by $(<"$folder/.job.lock")" >&2
  exit 2
fi
echo "process $$ on $HOSTNAME, since $(date -u +%FT%TZ)" >"$folder/.job.lock"
past=1
while [[ -e $folder/job.$past.log ]]; do past=$((past + 1)); done
if [[ -e $folder/job.log ]]; then
  mv -- "$folder/job.log" "$folder/job.$past.log"
fi
if [[ -e $folder/exit_code ]]; then
  mv -- "$folder/exit_code" "$folder/exit_code.$past"
fi
exec >"$folder/job.log" 2>&1 </dev/null

# shellcheck disable=SC2329  # called by the trap
finish() {
  code=$?
  # In place: a full disk has room for that.
  echo "$code" 1<>"$folder/exit_code" || true
  truncate -s "$((${#code} + 1))" "$folder/exit_code" || true
}
trap finish EXIT
echo running >"$folder/exit_code"
# Asked to stop: the ranks are, they close their log, and the run is recorded as failed.
stopped='' child=''
# shellcheck disable=SC2329  # called by the trap
stop() {
  stopped=$1
  if [[ -n $child ]]; then kill -TERM "$child" || true; else exit 143; fi
}
trap 'stop TERM' TERM
trap 'stop INT' INT

# What the engines read. A variable that is set already stays, and the run says so.
default() { export "$1=${!1-$2}"; }
default CUDA_MODULE_LOADING LAZY
default HOROVOD_CYCLE_TIME 0.2
default HOROVOD_DISABLE_GROUP_FUSION 1
default MXNET_CUDNN_AUTOTUNE_DEFAULT 0
default MXNET_CUDNN_LIB_CHECKING 0
default MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD 25
default MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD 999
default NCCL_ALGO Ring
default OMP_NUM_THREADS 5
export PYTHONPATH="$home${PYTHONPATH:+:$PYTHONPATH}"

: "${RN50_HOSTS:?a file with the names of the hosts, one a line, expected}"
# The allocation's hosts, each once, with its slots.
awk '!seen[$1]++ { print $1 " slots=4" }' "$RN50_HOSTS" >"$folder/hosts"
if [[ $EUID -eq 0 ]]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
# The other nodes get what the engines read, whoever set it, and what modules set.
exports=()
pattern='^(NCCL_|HOROVOD_|MXNET_|DALI_|CUDA_|UCX_|OMP_|KMP_|GOMP_|OMPI_MCA_|OPENBLAS_)|^(PATH|LD_LIBRARY_PATH|PYTHONPATH)$'
while read -r name; do
  if [[ $name =~ $pattern ]]; then exports+=(-x "$name"); fi
done < <(compgen -e)
dataset=$data
ranks=(mpirun -np 8 --hostfile "$folder/hosts" --map-by ppr:4:node --bind-to none "${exports[@]}"
  -x RN50_WATCHDOG "$home/scripts/bind.sh")
once=(env)

"${once[@]}" "$python" -m rn50.cli.entry data prepare "${config[@]}"

mkdir -p -- "$folder/results/$system/resnet"
failed=0
for ((n = 0; n < runs; n++)); do
  out=$folder/run_$n
  seed=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')
  begun=0
  "${once[@]}" "$python" -m rn50.launch.job_steps begin "$out" \
    --scheduler local --seed="$seed" --data="$dataset" -- "${config[@]}" \
    || begun=$?
  if ((begun == 10 || begun == 11)); then # this run ended in a start before this one
    failed=$((failed | (begun - 10)))
    continue
  fi
  if ((begun)); then exit "$begun"; fi
  train=("$python" -m rn50.train "$out/config.yaml" --out "$out")
  if [[ -s $out/resume_from ]]; then # interrupted: on from its checkpoint
    train+=(--resume "$(<"$out/resume_from")")
  fi
  # The ranks drop the data set's caches themselves, and log it: cache_clear.
  # The watchdog: ends the step when a rank stops, which no scheduler sees.
  "$python" -m rn50.launch.supervisor "$out" -- "${ranks[@]}" "${train[@]}" &
  child=$! code=0
  wait "$child" || code=$?
  if [[ -n $stopped ]]; then
    wait "$child" || code=$?
  fi
  child='' end=0
  "${once[@]}" "$python" -m rn50.launch.job_steps end \
    "$out" "$code" "$stopped" "$SECONDS" local || end=$?
  if [[ -f $out/result_0.txt ]]; then
    cp -- "$out/result_0.txt" "$folder/results/$system/resnet/result_$n.txt"
  fi
  # 1: the run ended short of its target, the next one may start; above: a rank failed.
  if [[ -n $stopped ]]; then exit 143; fi
  if ((end > 1)); then exit "$end"; fi
  failed=$((failed | end))
done
"${once[@]}" "$python" -m rn50.cli.entry log score \
  "$folder/results/$system/resnet" || true
exit "$failed"
