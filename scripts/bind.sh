#!/usr/bin/env bash
# Place one local rank on its GPU, NUMA node, cores and nearest HCA, then become COMMAND.
#   bind.sh [--print] COMMAND [ARGUMENT ...]
# The rank comes from its launcher's variables, the topology from sysfs: PCI addresses in order are
# the GPUs' numbers, a rank's cores are its share of the first threads of its NUMA node, the nearest
# HCA shares the longest PCI path; ranks take equally near ones in turn. Variables that are set stay.
#   RN50_SYSFS   root of another sysfs (default /sys): the choice is printed, nothing is bound
set -euo pipefail
shopt -s nullglob

sys=${RN50_SYSFS:-/sys}
print=
[[ $sys == /sys ]] || print=yes

fail() {
  printf 'bind: error: %s\n' "$*" >&2
  exit 2
}
first() { # first NAME...: the value of the first variable that is set
  local name
  for name in "$@"; do
    if [[ -n ${!name:-} ]]; then
      printf '%s' "${!name}"
      return
    fi
  done
}
content() { # content FILE DEFAULT: its first line into $line
  line=
  if [[ -r $1 ]]; then read -r line 2>/dev/null <"$1" || true; fi
  line=${line:-$2}
}

if [[ ${1:-} == --print ]]; then
  print=yes
  shift
fi
(($#)) || [[ -n $print ]] || fail "a command expected, found none"

# In the order of train/process_info.py, which says why Slurm's come last. A launcher that it does not
# have is named first: rank, size, local rank and, if it has one, local size.
IFS=, read -ra names <<<"${RN50_RANK_VARIABLES:-}"
rank=$(first "${names[@]:2:1}" HOROVOD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_RANK \
  MPI_LOCALRANKID PMI_LOCAL_RANK SLURM_LOCALID)
size=$(first "${names[@]:3:1}" HOROVOD_LOCAL_SIZE OMPI_COMM_WORLD_LOCAL_SIZE \
  MPI_LOCALNRANKS PMI_LOCAL_SIZE SLURM_NTASKS_PER_NODE)
rank=${rank:-0}
size=${size:-1}
[[ $rank =~ ^[0-9]+$ && $size =~ ^[0-9]+$ ]] || fail "numbers expected, found local rank $rank of $size"
((size > rank)) || size=$((rank + 1))

# cores_of LIST: of its cores the first threads that this process may use, one a line.
allowed=0-65535
if [[ $sys == /sys ]]; then allowed=$(awk '/^Cpus_allowed_list/ { print $2 }' /proc/self/status); fi
cores_of() {
  awk -v allowed="$allowed" -v list="$1" '
    function expand(text, set,   parts, ends, i, core) {
      for (i = split(text, parts, ","); i > 0; i--) {
        if (split(parts[i], ends, "-") == 1) ends[2] = ends[1]
        for (core = ends[1] + 0; core <= ends[2] + 0; core++) set[core]
      }
    }
    BEGIN { expand(allowed, may); expand(list, here) }
    {
      core = FILENAME
      gsub(/.*cpu|\/topology.*/, "", core)
      sub(/[,-].*/, "")
      if (core + 0 in here && core + 0 in may && (core == $0 || !($0 + 0 in may))) print core
    }' "$sys"/devices/system/cpu/cpu[0-9]*/topology/thread_siblings_list </dev/null | sort -n
}
nodes=()
declare -A own
for folder in "$sys"/devices/system/node/node[0-9]*; do
  content "$folder/cpulist" ''
  own[${folder##*/node}]=$(cores_of "$line")
  if [[ -n ${own[${folder##*/node}]} ]]; then nodes+=("${folder##*/node}"); fi
done
if ((${#nodes[@]})); then mapfile -t nodes < <(printf '%s\n' "${nodes[@]}" | sort -n); fi

gpus=() gpu_nodes=() # NVIDIA's display and 3D controllers by PCI address
for device in "$sys"/bus/pci/devices/*; do
  content "$device/vendor" ''
  [[ $line == 0x10de ]] || continue
  content "$device/class" ''
  [[ $line == 0x030[02]* ]] || continue
  gpus+=("$(readlink -f -- "$device")")
  content "$device/numa_node" -1
  gpu_nodes+=("$line")
done

gpu_of() { # gpu_of RANK: its number into $gpu, within CUDA_VISIBLE_DEVICES where that has numbers
  local -a visible
  gpu=none
  ((${#gpus[@]})) || return 0
  IFS=, read -ra visible <<<"${CUDA_VISIBLE_DEVICES:-}"
  gpu=$(($1 % ${#gpus[@]}))
  local wanted=${visible[$1 % (${#visible[@]} + !${#visible[@]})]:-$gpu}
  if [[ $wanted =~ ^[0-9]+$ ]] && ((wanted < ${#gpus[@]})); then gpu=$wanted; fi
}
node_of() { # node_of RANK: its GPU's, or a share of all in blocks, into $node
  gpu_of "$1"
  node=
  if [[ $gpu != none && ${gpu_nodes[gpu]} != -1 ]]; then node=${gpu_nodes[gpu]}; fi
  if [[ -z $node ]] && ((${#nodes[@]})); then node=${nodes[$1 * ${#nodes[@]} / size]}; fi
}

place=0 sharers=0
node_of "$rank"
mine=$node
for ((other = 0; other < size; other++)); do
  node_of "$other"
  if [[ $node == "$mine" ]]; then place=$((place + (other < rank))) sharers=$((sharers + 1)); fi
done
node_of "$rank"
mapfile -t own_cores < <(printf '%s' "${own[${node:-none}]:-}")
if ((${#own_cores[@]} >= sharers)); then
  begin=$((place * ${#own_cores[@]} / sharers))
  own_cores=("${own_cores[@]:begin:(place + 1) * ${#own_cores[@]} / sharers - begin}")
fi
cores=$(printf '%s\n' "${own_cores[@]}" | awk '
  NF && $1 == high + 1 && NR > 1 { high = $1; next }
  NF { if (NR > 1) printf "%s%s,", low, (high > low ? "-" high : ""); low = high = $1 }
  END { if (NF) printf "%s%s", low, (high > low ? "-" high : "") }')

# Of the InfiniBand and RoCE adapters whose first port is up, or does not say, the nearest.
hca=
best=-1 nearest=()
path=$([[ $gpu == none ]] || printf '%s' "${gpus[gpu]}")
for device in "$sys"/class/infiniband/*; do
  content "$device/ports/1/state" ACTIVE
  [[ $line == *ACTIVE* ]] || continue
  content "$device/device/numa_node" -1
  near=$([[ $line == "$node" ]] && echo 1 || echo 0)
  common=$(readlink -f -- "$device/device")/ # the longest folder above both
  while [[ $path/ != "$common"* ]]; do common=${common%/*/}/; done
  slashes=${common//[^\/]/}
  near=$((near + 2 * ${#slashes}))
  if ((near > best)); then best=$near nearest=(); fi
  if ((near == best)); then nearest+=("${device##*/}"); fi
done
if ((${#nearest[@]})); then hca=${nearest[rank % ${#nearest[@]}]}; fi
reason="of ${#nearest[@]} nearest"

tool=none
if [[ -n $cores ]]; then tool=$(basename -- "$(command -v numactl || command -v taskset || echo none)"); fi
[[ $gpu == none ]] || gpu+=" (${gpus[gpu]##*/})"
message="bind: local rank $rank of $size: GPU $gpu, NUMA node ${node:-unknown}"
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
    memory=(${node:+"--membind=$node"}) # refused in some containers: cores alone then
    numactl --physcpubind="$cores" "${memory[@]}" true 2>/dev/null || memory=()
    exec numactl --physcpubind="$cores" "${memory[@]}" "$@"
    ;;
  taskset) exec taskset -c "$cores" "$@" ;;
esac
exec "$@"
