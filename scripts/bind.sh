#!/usr/bin/env bash
# Place one local rank on its GPU, NUMA node, cores and nearest HCA, then become COMMAND.
#   bind.sh [--table NAME|/FILE] [--print] COMMAND [ARGUMENT ...]
# The rank comes from its launcher's variables, the topology from sysfs: PCI addresses in order are
# the GPUs' numbers, a rank's cores are its share of the first threads of its NUMA node. The nearest
# HCA is what `nvidia-smi topo -m` says, without it the one that shares the longest PCI path; where
# several are as near, ranks take them in turn. A table (config/system/NAME.bind) overrides: lines
# "LOCAL_RANK NUMA_NODE CORES HCA", - for what is to be found. Variables that are set stay.
#   RN50_SYSFS   root of another sysfs (default /sys): the choice is printed, nothing is bound
#   RN50_TOPO    file with the output of nvidia-smi topo -m, for another sysfs
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
# content FILE DEFAULT: its first line into $line. No process: there are hundreds of cores.
content() {
  line=
  if [[ -r $1 ]]; then read -r line 2>/dev/null <"$1" || true; fi
  line=${line:-$2}
}
# expand LIST: 0-2,8 as the numbers ${numbers[@]}
expand() {
  local part number
  local -a parts
  numbers=()
  IFS=, read -ra parts <<<"$1"
  for part in ${parts[@]+"${parts[@]}"}; do
    [[ $part =~ ^[0-9]+(-[0-9]+)?$ ]] || continue
    for ((number = 10#${part%-*}; number <= 10#${part#*-}; number++)); do numbers+=("$number"); done
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

# In the order of config/local_rank.py, which says why Slurm's come last.
rank=$(first HOROVOD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_RANK MV2_COMM_WORLD_LOCAL_RANK \
  MPI_LOCALRANKID PMI_LOCAL_RANK PALS_LOCAL_RANKID JSM_NAMESPACE_LOCAL_RANK SLURM_LOCALID)
size=$(first HOROVOD_LOCAL_SIZE OMPI_COMM_WORLD_LOCAL_SIZE MV2_COMM_WORLD_LOCAL_SIZE \
  MPI_LOCALNRANKS PMI_LOCAL_SIZE JSM_NAMESPACE_LOCAL_SIZE SLURM_NTASKS_PER_NODE)
rank=${rank:-0}
size=${size:-1}
[[ $rank =~ ^[0-9]+$ && $size =~ ^[0-9]+$ ]] || fail "numbers expected, found local rank $rank of $size"
((size > rank)) || size=$((rank + 1))

# --- what the machine has ---------------------------------------------------------------------

# Cores that this process may use; in another sysfs all.
allowed=
if [[ $sys == /sys ]]; then allowed=$(awk '/^Cpus_allowed_list/ { print $2 }' /proc/self/status); fi
declare -A may=()
expand "$allowed"
for core in ${numbers[@]+"${numbers[@]}"}; do may[$core]=1; done

# NUMA nodes with cores, and the first threads of each one's cores.
nodes=()
declare -A cores_of=()
for folder in "$sys"/devices/system/node/node[0-9]*; do
  [[ -d $folder ]] || continue
  node=${folder##*/node}
  own=
  content "$folder/cpulist" ''
  expand "$line"
  for core in ${numbers[@]+"${numbers[@]}"}; do
    [[ -z $allowed || -n ${may[$core]:-} ]] || continue
    content "$sys/devices/system/cpu/cpu$core/topology/thread_siblings_list" "$core"
    sibling=${line%%[,-]*}
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
  content "$device/vendor" ''
  [[ $line == 0x10de ]] || continue
  content "$device/class" ''
  [[ $line == 0x030[02]* ]] || continue
  gpus+=("$(readlink -f -- "$device")")
  content "$device/numa_node" -1
  gpu_nodes+=("$line")
done

# InfiniBand and RoCE adapters whose first port is up (or does not say).
hcas=()
hca_paths=()
hca_nodes=()
for device in "$sys"/class/infiniband/*; do
  [[ -e $device ]] || continue
  content "$device/ports/1/state" ACTIVE
  [[ $line == *ACTIVE* ]] || continue
  hcas+=("${device##*/}")
  hca_paths+=("$(readlink -f -- "$device/device")")
  content "$device/device/numa_node" -1
  hca_nodes+=("$line")
done

# What NVIDIA's tool says of distances, as lines "GPU HCA KIND"; nothing without it.
distances=
if [[ -n ${RN50_TOPO:-} ]]; then
  matrix=$(<"$RN50_TOPO")
elif [[ $sys == /sys ]] && ((${#hcas[@]})) && command -v nvidia-smi >/dev/null; then
  matrix=$(nvidia-smi topo -m 2>/dev/null || true)
else
  matrix=
fi
if [[ -n $matrix ]]; then
  # Newer tools number the adapters in the matrix (NIC0) and name them below it.
  distances=$(awk '
    { gsub(/\033\[[0-9;]*m/, "") }
    /^[ \t]*NIC[0-9]+:/ { sub(":", "", $1); named[$1] = $2; next }
    !columns && /GPU0/ { for (i = 1; i <= NF && $i ~ /^(GPU[0-9]+|NIC[0-9]+|mlx.*|bnxt.*)$/; i++) {
      head[i] = $i; columns = i } next }
    $1 ~ /^GPU[0-9]+$/ { for (i = 1; i <= columns; i++) if (head[i] !~ /^GPU/) {
      count++; gpu[count] = substr($1, 4); nic[count] = head[i]; kind[count] = $(i + 1) } }
    END { for (i = 1; i <= count; i++) {
      print gpu[i], (nic[i] in named ? named[nic[i]] : nic[i]), kind[i] } }' <<<"$matrix")
fi

# --- the choice -------------------------------------------------------------------------------

# gpu_of RANK: its number in PCI order into $gpu, within CUDA_VISIBLE_DEVICES where that has numbers
gpu_of() {
  local -a visible
  gpu=none
  ((${#gpus[@]})) || return 0
  IFS=, read -ra visible <<<"${CUDA_VISIBLE_DEVICES:-}"
  gpu=$(($1 % ${#gpus[@]}))
  if ((${#visible[@]})); then
    local wanted=${visible[$1 % ${#visible[@]}]}
    if [[ $wanted =~ ^[0-9]+$ ]] && ((wanted < ${#gpus[@]})); then gpu=$wanted; fi
  fi
}
# numa_of RANK: of its GPU where there is one, else ranks are dealt out in blocks
numa_of() {
  local gpu=none node=-1
  gpu_of "$1"
  if [[ $gpu != none ]]; then node=${gpu_nodes[gpu]}; fi
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

gpu_of "$rank"

# nearness INDEX: of an HCA to this rank's GPU (else to its NUMA node) into $near, and $how it is known
nearness() {
  local kind
  near=0
  how="by NUMA node"
  if [[ ${hca_nodes[$1]} == "$node" ]]; then near=1; fi
  [[ $gpu != none ]] || return 0
  kind=$(awk -v gpu="$gpu" -v hca="${hcas[$1]}" '$1 == gpu && $2 == hca { print $3 }' <<<"$distances")
  case $kind in
    PIX) near=50 ;;
    PXB) near=40 ;;
    PHB) near=30 ;;
    NODE) near=20 ;;
    SYS | SOC) near=10 ;;
    *)
      near=$((near + 2 * $(shared "${gpus[gpu]}" "${hca_paths[$1]}")))
      how="by PCI path"
      return
      ;;
  esac
  how="by nvidia-smi, $kind"
}
hca=$(override 4 "$rank")
reason=table
if [[ -z $hca ]] && ((${#hcas[@]})); then
  best=-1
  nearest=()
  for index in "${!hcas[@]}"; do
    nearness "$index"
    if ((near > best)); then
      best=$near
      reason=$how
      nearest=("${hcas[index]}")
    elif ((near == best)); then
      nearest+=("${hcas[index]}")
    fi
  done
  hca=${nearest[rank % ${#nearest[@]}]} # as near as each other: in turn
  reason="of ${#nearest[@]} nearest $reason"
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
message+=", cores ${cores:-all}, HCA ${hca:-none}${hca:+ ($reason)}"

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
