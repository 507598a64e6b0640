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

# The part of a container's job script that is the same for every job. `container_script.py` puts
# it below the names, replaces the two marked lines, and leaves everything else as it is.
#
# A loop around two steps of Python in the container (job_steps.py), which begin and end a run as
# `rn50 launch` does. Ranks are not watched: what would watch them is inside the container.
# Set above: start folder home python config, and in the settings: launcher nodes ranks_per_node
# runs data staged drop_caches score limit_signal, requeue().

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
engine_pattern='^(NCCL_|HOROVOD_|MXNET_|DALI_|CUDA_|UCX_|FI_|OMP_|KMP_|GOMP_|OPENBLAS_|OMPI_MCA_|PRTE_MCA_|MPICH_|MPIR_CVAR_|I_MPI_|MV2_)|^(PATH|LD_LIBRARY_PATH|PYTHONPATH)$'
launcher=srun nodes=512 ranks_per_node=4
runs=5 score=NVIDIA_DGX_SuperPOD_A100_n512 job_id="${SLURM_JOB_ID:-}"
staged=0 drop_caches=1 data=datasets/imagenet
limit_signal=''
# shellcheck disable=SC2317,SC2329  # called by the trap
requeue() { :; }

# shellcheck disable=SC2034  # read by the commands
hosts='' exports=()
if [[ $launcher == mpirun ]]; then
  if ((nodes > 1)); then # the allocation's hosts, each once, with its slots
    file=${SGE_JOB_HOSTLIST:-${PE_HOSTFILE:-${PBS_NODEFILE:-${RN50_HOSTS:?a file with the names of the hosts, one a line, expected}}}}
    # shellcheck disable=SC2034  # read by the commands
    hosts=$(awk -v slots="$ranks_per_node" \
      '!seen[$1]++ { printf "%s%s:%s", comma, $1, slots; comma = "," }' "$file")
  fi
  if [[ $EUID -eq 0 ]]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
  # The other nodes get what the engines read, whoever set it, and what modules set.
  while read -r name; do
    if [[ $name =~ $engine_pattern ]]; then exports+=(-x "$name"); fi
  done < <(compgen -e)
else # srun ignores the job's from 22.05 on
  export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-}"
fi
mounts="$start:$start",/raid:/raid:ro
container=(--container-image='registry#rn50:gpu' --container-name=rn50
  --container-mounts="$mounts" --container-workdir="$start")
ranks=(srun --mpi=pmix --kill-on-bad-exit=1 --nodes=512 --ntasks=2048 --ntasks-per-node=4
  --cpu-bind=none --export=ALL "${container[@]}" "$home/scripts/bind.sh")
per_node=(srun --mpi=pmix --kill-on-bad-exit=1 --nodes=512 --ntasks=512 --ntasks-per-node=1
  --cpu-bind=none --export=ALL)
once=(srun --nodes=1 --ntasks=1 "${container[@]}")

mkdir -p -- "$folder"
exec 9>>"$folder/.job.lock"
locked=0
flock -n 9 || locked=$? # above 1: a file system without locks
if ((locked == 1)); then
  echo "rn50: error: $folder: in use by $(<"$folder/.job.lock")" >&2
  exit 2
fi
kept() { compgen -G "$folder/run_*/checkpoint/step_*.ckpt" || true; }
before=$(kept)
echo "process $$ on $HOSTNAME${job_id:+, job $job_id}, since $(date -u +%FT%TZ)" >"$folder/.job.lock"
exec >>"$folder/job.log" 2>&1 </dev/null

# Once a node: copied to its own disk, every byte checked there.
staging=("${per_node[@]}" "${container[@]}" "$python" -m rn50.cli.entry data stage --to "$data")
# shellcheck disable=SC2317,SC2329  # called by the trap
finish() {
  code=$?
  if ((staged)); then "${staging[@]}" --remove -- "${config[@]}" || true; fi
  # In place: a full disk has room for that.
  echo "$code" 1<>"$folder/exit_code" || true
  truncate -s "$((${#code} + 1))" "$folder/exit_code" || true
  # Without a new checkpoint it would go on like this for ever.
  if [[ -n $limit_signal && $stopped == "$limit_signal" && $(kept) != "$before" ]]; then
    requeue
  fi
}
stopped='' child=''
# shellcheck disable=SC2317,SC2329  # called by the traps
stop() {
  stopped=$1
  if [[ -n $child ]]; then kill -TERM "$child" || true; else exit 143; fi
}
for name in SIGTERM SIGINT $limit_signal; do
  # shellcheck disable=SC2064  # the name as it is now
  trap "stop $name" "$name"
done
trap finish EXIT
echo running >"$folder/exit_code"
if ((staged)); then "${per_node[@]}" mkdir -p -- "${data%/*}"; fi
"${once[@]}" "$python" -m rn50.cli.entry data prepare -- "${config[@]}"
if ((staged)); then "${staging[@]}" -- "${config[@]}"; fi

steps=("${once[@]}" "$python" -m rn50.launch.job_steps)
failed=0
for ((n = 0; n < runs; n++)); do
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
  if ((drop_caches)); then
    "${per_node[@]}" bash -c 'sync
      { echo 3 >/proc/sys/vm/drop_caches; } 2>/dev/null ||
        sudo -n sysctl -q vm.drop_caches=3'
  fi
  "${ranks[@]}" "${train[@]}" 2>"$out/stderr.log" &
  child=$!
  wait "$child" || code=$?
  if [[ -n $stopped ]]; then wait "$child" || code=$?; fi
  child='' end=0
  "${steps[@]}" end "$out" "$code" "$stopped" || end=$?
  if [[ -n $stopped ]]; then exit 143; fi
  # 1: short of its target, the next one may start; above: a rank failed.
  if ((end > 1)); then exit "$end"; fi
  failed=$((failed | end))
done
if ((runs > 1)); then
  "${once[@]}" "$python" -m rn50.cli.entry log score "$folder/results/$score/resnet" || true
fi
exit "$failed"
