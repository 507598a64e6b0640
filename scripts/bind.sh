#!/usr/bin/env bash
# Place one local rank on its GPU, NUMA node, cores and nearest HCA, then become COMMAND.
#   bind.sh [--table NAME|/FILE] [--print] COMMAND [ARGUMENT ...]
# The rank comes from its launcher's variables, the topology from sysfs: PCI addresses in order are
# the GPUs' numbers, the HCA nearest to a GPU shares the longest PCI path with it, a rank's cores
# are its share of the first threads of its NUMA node. A table (config/system/NAME.bind) overrides:
# lines "LOCAL_RANK NUMA_NODE CORES HCA", - for what is to be found. Variables that are set stay.
#   RN50_SYSFS   root of another sysfs (default /sys): the choice is printed, nothing is bound
set -euo pipefail

sys=${RN50_SYSFS:-/sys}
home=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
table=
print=
[[ $sys == /sys ]] || print=yes

fail() {
  printf 'bind: error: %s\n' "$*" >&2
  exit 2
}
# first NAME...: the value of the first variable that is set
first() {
  local name
  for name in "$@"; do
    if [[ -n ${!name:-} ]]; then
      printf '%s' "${!name}"
      return
    fi
  done
}
# content FILE DEFAULT
content() {
  if [[ -r $1 ]]; then
    head -n 1 -- "$1" 2>/dev/null || printf '%s\n' "$2"
  else
    printf '%s\n' "$2"
  fi
}
# expand LIST: 0-2,8 as one number a line
expand() {
  local part
  local -a parts
  IFS=, read -ra parts <<<"$1"
  for part in ${parts[@]+"${parts[@]}"}; do
    [[ $part =~ ^[0-9]+(-[0-9]+)?$ ]] || continue
    seq "${part%-*}" "${part#*-}"
  done
}
# compact NUMBER...: 0 1 2 8 as 0-2,8
compact() {
  printf '%s\n' "$@" | awk '
    NR == 1 { low = high = $1; next }
    $1 == high + 1 { high = $1; next }
    { printf "%s%s,", low, (high > low ? "-" high : ""); low = high = $1 }
    END { if (NR) printf "%s%s", low, (high > low ? "-" high : "") }'
}
# shared A B: how many leading folders two paths have in common
shared() {
  local -a a b
  local n=0
  IFS=/ read -ra a <<<"$1"
  IFS=/ read -ra b <<<"$2"
  while ((n < ${#a[@]} && n < ${#b[@]})) && [[ ${a[n]} == "${b[n]}" ]]; do n=$((n + 1)); done
  printf '%s' "$n"
}

while [[ ${1:-} == --* ]]; do
  case $1 in
    --table)
      table=${2:?--table: a name or a path expected}
      shift 2
      ;;
    --print)
      print=yes
      shift
      ;;
    *) fail "--table, --print or a command expected, found $1" ;;
  esac
done
(($#)) || [[ -n $print ]] || fail "a command expected, found none"
if [[ -n $table && $table != /* ]]; then table=$home/config/system/$table.bind; fi
[[ -z $table || -r $table ]] || fail "$table: a table of bindings expected, found none"

rank=$(first OMPI_COMM_WORLD_LOCAL_RANK SLURM_LOCALID HOROVOD_LOCAL_RANK \
  JSM_NAMESPACE_LOCAL_RANK MV2_COMM_WORLD_LOCAL_RANK MPI_LOCALRANKID)
size=$(first OMPI_COMM_WORLD_LOCAL_SIZE HOROVOD_LOCAL_SIZE JSM_NAMESPACE_LOCAL_SIZE \
  MV2_COMM_WORLD_LOCAL_SIZE MPI_LOCALNRANKS SLURM_NTASKS_PER_NODE)
rank=${rank:-0}
size=${size:-1}
[[ $rank =~ ^[0-9]+$ && $size =~ ^[0-9]+$ ]] || fail "numbers expected, found local rank $rank of $size"
((size > rank)) || size=$((rank + 1))

# --- what the machine has ---------------------------------------------------------------------

# Cores that this process may use; in another sysfs all.
allowed=
if [[ $sys == /sys ]]; then allowed=$(awk '/^Cpus_allowed_list/ { print $2 }' /proc/self/status); fi
declare -A may=()
for core in $(expand "$allowed"); do may[$core]=1; done

# NUMA nodes with cores, and the first threads of each one's cores.
nodes=()
declare -A cores_of=()
for folder in "$sys"/devices/system/node/node[0-9]*; do
  [[ -d $folder ]] || continue
  node=${folder##*/node}
  own=
  for core in $(expand "$(content "$folder/cpulist" '')"); do
    [[ -z $allowed || -n ${may[$core]:-} ]] || continue
    thread=$(content "$sys/devices/system/cpu/cpu$core/topology/thread_siblings_list" "$core")
    sibling=${thread%%[,-]*}
    if [[ $sibling == "$core" || (-n $allowed && -z ${may[$sibling]:-}) ]]; then own+=" $core"; fi
  done
  if [[ -n $own ]]; then
    nodes+=("$node")
    cores_of[$node]=$own
  fi
done
if ((${#nodes[@]} > 1)); then mapfile -t nodes < <(printf '%s\n' "${nodes[@]}" | sort -n); fi

# NVIDIA GPUs (display and 3D controllers) by PCI address.
gpus=()
gpu_nodes=()
for device in "$sys"/bus/pci/devices/*; do
  [[ $(content "$device/vendor" '') == 0x10de ]] || continue
  [[ $(content "$device/class" '') == 0x030[02]* ]] || continue
  gpus+=("$(readlink -f -- "$device")")
  gpu_nodes+=("$(content "$device/numa_node" -1)")
done

# InfiniBand and RoCE adapters.
hcas=()
hca_paths=()
hca_nodes=()
for device in "$sys"/class/infiniband/*; do
  [[ -e $device ]] || continue
  hcas+=("${device##*/}")
  hca_paths+=("$(readlink -f -- "$device/device")")
  hca_nodes+=("$(content "$device/device/numa_node" -1)")
done

# --- the choice -------------------------------------------------------------------------------

# numa_of RANK: of its GPU where there is one, else ranks are dealt out in blocks
numa_of() {
  local gpu=-1 node=-1
  if ((${#gpus[@]})); then
    gpu=$(($1 % ${#gpus[@]}))
    node=${gpu_nodes[gpu]}
  fi
  if ((node < 0)); then
    ((${#nodes[@]})) || return 0
    node=${nodes[$1 * ${#nodes[@]} / size]}
  fi
  printf '%s' "$node"
}
# override COLUMN RANK: from the table; nothing where it is silent
override() {
  [[ -n $table ]] || return 0
  awk -v column="$1" -v rank="$2" '
    !/^[ \t]*(#|$)/ && $1 == rank && $column != "-" { print $column; exit }' "$table"
}
node_for() {
  local node
  node=$(override 2 "$1")
  printf '%s' "${node:-$(numa_of "$1")}"
}

node=$(node_for "$rank")
[[ -z $node || $node =~ ^[0-9]+$ ]] || fail "$table: a NUMA node's number expected, found $node"

cores=$(override 3 "$rank")
if [[ -z $cores && -n $node ]]; then
  place=0
  sharers=0
  for ((other = 0; other < size; other++)); do
    if [[ $(node_for "$other") == "$node" ]]; then
      if ((other < rank)); then place=$((place + 1)); fi
      sharers=$((sharers + 1))
    fi
  done
  read -ra own <<<"${cores_of[$node]:-}"
  if ((${#own[@]} >= sharers)); then
    begin=$((place * ${#own[@]} / sharers))
    own=("${own[@]:begin:(place + 1) * ${#own[@]} / sharers - begin}")
  fi
  if ((${#own[@]})); then cores=$(compact "${own[@]}"); fi
fi

gpu=none
if ((${#gpus[@]})); then gpu=$((rank % ${#gpus[@]})); fi

hca=$(override 4 "$rank")
how=table
if [[ -z $hca ]] && ((${#hcas[@]})); then
  best=-1
  nearest=()
  for index in "${!hcas[@]}"; do
    near=0
    if [[ ${hca_nodes[index]} == "$node" ]]; then near=1; fi
    if [[ $gpu != none ]]; then near=$((near + 2 * $(shared "${gpus[gpu]}" "${hca_paths[index]}"))); fi
    if ((near > best)); then
      best=$near
      nearest=("${hcas[index]}")
    elif ((near == best)); then
      nearest+=("${hcas[index]}")
    fi
  done
  hca=${nearest[rank % ${#nearest[@]}]} # as near as each other: in turn
  how="of ${#nearest[@]} nearest by PCI path"
fi

tool=none
if [[ -n $cores ]]; then
  if command -v numactl >/dev/null; then
    tool=numactl
  elif command -v taskset >/dev/null; then
    tool=taskset
  fi
fi
address=
if [[ $gpu != none ]]; then address=" (${gpus[gpu]##*/})"; fi
message="bind: local rank $rank of $size: GPU $gpu$address, NUMA node ${node:-unknown}"
message+=", cores ${cores:-all}, HCA ${hca:-none}${hca:+ ($how)}"

if [[ -n $print ]]; then
  printf '%s\n' "$message"
  (($#)) || exit 0
  exec "$@"
fi
printf '%s, by %s\n' "$message" "$tool" >&2

if [[ $gpu != none ]]; then export CUDA_DEVICE_ORDER=${CUDA_DEVICE_ORDER:-PCI_BUS_ID}; fi
if [[ -n $hca ]]; then
  # MPI's way out. NCCL finds the nearest HCA itself and has to see all of them.
  export UCX_NET_DEVICES=${UCX_NET_DEVICES:-$hca:1}
  export OMPI_MCA_btl_openib_if_include=${OMPI_MCA_btl_openib_if_include:-$hca}
fi
case $tool in
  numactl)
    # Memory policies are refused in some containers: cores alone then.
    if numactl --physcpubind="$cores" ${node:+--membind="$node"} true 2>/dev/null; then
      exec numactl --physcpubind="$cores" ${node:+--membind="$node"} "$@"
    fi
    exec numactl --physcpubind="$cores" "$@"
    ;;
  taskset) exec taskset -c "$cores" "$@" ;;
esac
exec "$@"
