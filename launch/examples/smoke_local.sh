#!/usr/bin/env bash
#
# smoke: 1 node x 2 ranks, on local.
# As `rn50 submit` writes it. Edit what differs; submit it from the checkout:
#   bash launch/examples/smoke_local.sh
# shellcheck disable=SC2016,SC2317,SC2329  # dollars meant as such; traps call functions
set -euo pipefail

start=$PWD
folder=results/smoke/$(date -u +%Y%m%dT%H%M%SZ)-$$
home=$start
python=$start/.venv/bin/python
data=datasets/smoke
system=local_n1
config=(smoke)
runs=1

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
default HOROVOD_CPU_OPERATIONS MPI
default HOROVOD_CYCLE_TIME 1
default HOROVOD_DISABLE_GROUP_FUSION 1
default MXNET_CUDNN_AUTOTUNE_DEFAULT 0
default OMPI_MCA_btl_tcp_flags 1
default OMPI_MCA_mpi_yield_when_idle 1
default OMP_NUM_THREADS 1
export PYTHONPATH="$home${PYTHONPATH:+:$PYTHONPATH}"

printf 'localhost slots=%s\n' 2 >"$folder/hosts"
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
ranks=(mpirun -np 2 --hostfile "$folder/hosts" --map-by ppr:2:node --bind-to none "${exports[@]}"
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
exit "$failed"
