#!/usr/bin/env bash
# A real Slurm of several emulated nodes on this machine, for tests: its own munge, slurmctld and
# slurmd, all of the caller's and below one folder; nothing of the system's own Slurm is touched.
#   slurmlab.sh up DIR [NODES] [CPUS]     start (default 2 nodes of 2 CPUs); prints SLURM_CONF=...
#   slurmlab.sh down DIR                  cancel its jobs, stop its daemons
# Needs slurmctld, slurmd, slurm-client, munge and libpmix-dev (Slurm opens libpmix.so) of apt.
set -euo pipefail

fail() {
  printf 'slurmlab: error: %s\n' "$*" >&2
  exit 2
}
usage="up DIR [NODES] [CPUS] or down DIR expected"
(($# >= 2)) || fail "$usage, found ${*:-nothing}"
action=$1
PATH=$PATH:/usr/sbin:/sbin

# stop FILE...: end the daemons of these pid files; they remove the files as they end.
stop() {
  local file
  for file in "$@"; do
    if [[ -s $file ]]; then kill "$(<"$file")" 2>/dev/null || true; fi
  done
  for file in "$@"; do
    for _ in {1..100}; do
      [[ -s $file ]] || break
      sleep 0.1
    done
    if [[ -s $file ]]; then kill -KILL "$(<"$file")" 2>/dev/null || true; fi
  done
}
stop_daemons() {
  if [[ -f $dir/slurm.conf ]]; then
    SLURM_CONF=$dir/slurm.conf scancel --user="$(id -un)" 2>/dev/null || true
  fi
  stop "$dir"/slurmd-*.pid "$dir"/slurmctld.pid
  stop "$dir"/munged.pid # last: the others answer with it until they end
}

case $action in
  down)
    dir=$(cd -- "$2" && pwd) || exit 2
    stop_daemons
    exit 0
    ;;
  up) ;;
  *) fail "$usage, found $action" ;;
esac

nodes=${3:-2}
cpus=${4:-2}
[[ $nodes =~ ^[1-9][0-9]*$ && $cpus =~ ^[1-9][0-9]*$ ]] || fail "counts expected, found $nodes $cpus"
for program in slurmctld slurmd munged sinfo; do
  command -v "$program" >/dev/null || fail "$program of apt's slurmctld, slurmd, slurm-client, munge expected, found none"
done
mkdir -p -- "$2"
dir=$(cd -- "$2" && pwd)
[[ ! -e $dir/slurm.conf ]] || fail "$dir: an empty folder expected, found a slurm.conf"
mkdir -p "$dir"/{state,log,munge}
chmod 755 "$dir" "$dir/munge"
host=$(hostname -s)
user=$(id -un)
trap 'stop_daemons' ERR

# A munge of its own: the system's may not run, or be another's.
(umask 077 && head -c 1024 /dev/urandom >"$dir/munge/key")
munged --force --key-file="$dir/munge/key" --socket="$dir/munge/socket" --pid-file="$dir/munged.pid" \
  --log-file="$dir/log/munged.log" --seed-file="$dir/munge/seed" 2>>"$dir/log/start.log"

# Ports that are free now, from a random place on: several labs may run side by side.
ports=()
port=$((20000 + RANDOM % 10000))
while ((${#ports[@]} < nodes + 1)); do
  port=$((port + 1))
  (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null || ports+=("$port")
done

# TmpFS: else the PMIx folders of the emulated nodes collide in /tmp. KillOnBadExit: else a killed
# rank leaves the others waiting. The prolog clears what a killed step left before a requeue.
# config_overrides: nodes may claim more CPUs than they have.
cat >"$dir/prolog.sh" <<PROLOG
#!/bin/sh
rm -rf "$dir/tmp/\$SLURMD_NODENAME"/spmix_appdir_*_"\$SLURM_JOB_ID".*
PROLOG
# Ranks of two emulated nodes are on one host: Open MPI would name their shared memory alike, and
# they would hang or crash. On a real cluster nodes have names of their own.
cat >"$dir/task_prolog.sh" <<'PROLOG'
#!/bin/sh
echo export OMPI_MCA_btl=tcp,self
PROLOG
chmod +x "$dir"/{prolog,task_prolog}.sh
{
  cat <<CONF
ClusterName=rn50lab
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=${ports[0]}
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
CredType=cred/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
TmpFS=$dir/tmp/%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd-%n.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
KillOnBadExit=1
KillWait=30
Prolog=$dir/prolog.sh
TaskProlog=$dir/task_prolog.sh
ReturnToService=2
SlurmdTimeout=30
SlurmdDebug=verbose
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MinJobAge=600
SchedulerParameters=sched_interval=1
CONF
  for ((n = 1; n <= nodes; n++)); do
    printf 'NodeName=node%s NodeHostName=%s NodeAddr=127.0.0.1 Port=%s CPUs=%s RealMemory=1000\n' \
      "$n" "$host" "${ports[n]}" "$cpus"
  done
  printf 'PartitionName=lab Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=EXCLUSIVE\n'
} >"$dir/slurm.conf"
export SLURM_CONF=$dir/slurm.conf
slurmctld -f "$SLURM_CONF" 2>>"$dir/log/start.log"
for ((n = 1; n <= nodes; n++)); do
  mkdir -p "$dir/tmp/node$n" "$dir/spool/node$n"
  slurmd -f "$SLURM_CONF" -N "node$n" 2>>"$dir/log/start.log"
done
for _ in {1..300}; do
  if [[ $(sinfo -h -t idle -o %D 2>/dev/null) == "$nodes" ]]; then
    printf 'SLURM_CONF=%s\n' "$SLURM_CONF"
    exit 0
  fi
  sleep 0.1
done
stop_daemons
fail "$nodes idle nodes expected, found: $(sinfo -h -N -o '%N %T' 2>&1 | tr '\n' ' '); see $dir/log"
