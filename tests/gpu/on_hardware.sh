#!/usr/bin/env bash
# The ten minutes with a GPU, as a page for docs/notebook/gpu.md: whole runs of rn50 here, what is
# measured within a process by on_hardware.py. What fails or takes too long says so in the page.
#
#   tests/gpu/on_hardware.sh results/gpu.md
set -euo pipefail
cd "$(dirname "$0")/../.."
page=${1:?the page to write expected, such as results/gpu.md}
bin=.venv-gpu/bin
folder=${page%.md}
gpus=$(nvidia-smi --list-gpus | wc -l)
mkdir -p "$folder"
: >"$page"

# part LIMIT_S TITLE COMMAND ...
part() {
  local limit_s=$1 title=$2 code=0
  shift 2
  timeout -k 5 "$limit_s" "$@" >"$folder/printed.txt" 2>&1 || code=$?
  # shellcheck disable=SC2016 # the backquotes are Markdown's
  printf '\n### %s\n\n```text\n$ %s\n%s\n```\nexit code %s\n' \
    "$title" "$*" "$(tail -n 30 "$folder/printed.txt")" "$code" >>"$page"
}

# JPEG files of 100 KB: eight steps of 400 images an epoch on one rank.
drawn=(
  data.synthetic.classes=100 data.synthetic.train_samples=3200 data.synthetic.eval_samples=400
  data.synthetic.min_px=350 data.synthetic.max_px=500 data.classes=100
  "log.every=8 steps" limits.min_accuracy_by=off checkpoint.enabled=false
  division=open optimizer.base_lr=2.0
)

# trained LIMIT_S TITLE RANKS OVERRIDE ...: as many steps as one rank, and an evaluation at the end
trained() {
  local limit_s=$1 title=$2 ranks=$3
  shift 3
  part "$limit_s" "$title" "$bin/rn50" launch dgxh100_8 "${drawn[@]}" "data.path=$folder/images" \
    "system.results=$folder/runs" system.nodes=1 "system.ranks_per_node=$ranks" \
    "schedule.length=$((6 * ranks)) epochs" "eval.period=$((6 * ranks))" \
    "eval.offset=$((6 * ranks - 1))" "$@"
}

part 60 Doctor "$bin/rn50" doctor
if [ "$gpus" -gt 1 ]; then
  for groups in single "equal_bytes(8)"; do
    trained 50 "$groups, $gpus GPUs" "$gpus" "comm.groups=$groups"
  done
  quick=(system.device=gpu "system.results=$folder/runs" "data.path=$folder/quick")
  part 30 "An epoch of quick" "$bin/rn50" launch quick --ranks "$gpus" "${quick[@]}" \
    limits.epochs=1 "batch.per_rank=$(((63 + gpus) / gpus))"
  part 30 "quick, resumed" "$bin/rn50" launch quick --resume latest "${quick[@]}" limits.epochs=2
fi
all_ended=0
"$bin/python" -m tests.gpu.on_hardware "$page" || all_ended=1
limit_s=40 # the first draws the images
for decoding in "12 0.0" "8 0.0" "6 0.0" "6 0.3" "6 0.5"; do
  read -r threads load <<<"$decoding"
  trained "$limit_s" "$threads threads, hw_decoder_load $load" 1 \
    "data.decode_threads=$threads" "data.hw_decoder_load=$load"
  limit_s=15
done
exit "$all_ended"
