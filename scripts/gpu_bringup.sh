#!/usr/bin/env bash
# Brings a GPU environment to a machine that has a driver, perhaps no Python and no network, and
# takes no more than 64 MiB at a time; then checks there what one GPU can show.
#
# Here, where the environment is (scripts/setup.sh --gpu):
#   scripts/gpu_bringup.sh pack [FOLDER] [--sm 90] [--images 96]   default: .venv-gpu
#       copy it with a Python of its own to .bringup/stage, without the machine code that a GPU of
#       that compute capability (90 is 9.0) cannot load; compress; split into .bringup/pieces
#   scripts/gpu_bringup.sh send [N]    put piece N alone into .bringup/send, say what to run there;
#                                      without N: list the pieces
# There, in a copy of this repository with .bringup/send beside it:
#   scripts/gpu_bringup.sh probe       GPU, driver, CUDA, glibc, disk, memory; needs no Python
#   scripts/gpu_bringup.sh receive     check and keep the piece, in any order, again if need be;
#                                      unpack into .bringup/target when all are there
#   scripts/gpu_bringup.sh check [NAME...] [--rehearse]    run the checks (a few minutes), print a
#       table, write .bringup/results (and to $OUT, where that is a folder). --rehearse: the CPU in
#       the GPU's place, to try the checks themselves; it proves nothing about a GPU
#
# Between two calls .bringup/received and .bringup/target must stay, so start none of the pieces
# before all are packed. RN50_BRINGUP names another folder than .bringup.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

BRINGUP=${RN50_BRINGUP:-.bringup}
LEVEL=${RN50_BRINGUP_LEVEL:-12}         # of zstd: 6 takes 25 s on two cores, 12 takes 90 s, 8 % less
PIECE_KIB=${RN50_BRINGUP_PIECE_KIB:-59392} # 58 MiB: the repository and zstd travel along, 64 in all
TRAVELS_KIB=65536
WHOLE=bringup.tar.zst

say() { printf 'gpu_bringup: %s\n' "$*" >&2; }
fail() {
  printf 'gpu_bringup: error: %s\n' "$*" >&2
  exit 1
}
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }
bytes_of() { stat -Lc %s "$1"; }
sha_of() { sha256sum "$1" | cut -d' ' -f1; }
mebi() { awk -v b="$1" 'BEGIN { printf "%.1f MiB", b / 1048576 }'; }
# field MANIFEST NAME COLUMN: bytes (2) or sha256 (3) that the manifest gives for NAME
field() { awk -F'\t' -v n="$2" -v c="$3" '$1 == n { print $c }' "$1"; }
pieces_in() { awk -F'\t' '$1 ~ /^piece-/ { print $1 }' "$1"; }

pack() {
  local folder=.venv-gpu python start=$SECONDS
  if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
    folder=$1
    shift
  fi
  [ -x "$folder/bin/python" ] ||
    fail "$folder: an environment of 'scripts/setup.sh --gpu' expected, found none"
  local tool
  for tool in zstd tar gcc nm strip readelf ldd; do
    command -v "$tool" >/dev/null || fail "$tool expected, found none (apt-get install zstd tar gcc)"
  done
  python=$folder/bin/python
  if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
  rm -rf "$BRINGUP/stage" "$BRINGUP/pieces" "$BRINGUP/send" "$BRINGUP/pieces.partial"
  mkdir -p "$BRINGUP/pieces.partial"
  echo '*' >"$BRINGUP/.gitignore"
  "${PYTHON:-$python}" -m rn50.scripts.gpu_bringup.pack "$folder" "$BRINGUP/stage" "$@"
  local partial=$BRINGUP/pieces.partial
  say "compressing (zstd -$LEVEL)"
  tar -C "$BRINGUP/stage" --sort=name --owner=0 --group=0 --sparse -cf - . |
    zstd -q "-$LEVEL" -T0 --long=27 -o "$BRINGUP/$WHOLE.partial" -f
  {
    printf '%s\t%s\t%s\n' "$WHOLE" "$(bytes_of "$BRINGUP/$WHOLE.partial")" \
      "$(sha_of "$BRINGUP/$WHOLE.partial")"
    sed 's/^/needs\t/; s/ /\t/' "$BRINGUP/stage/needs"
  } >"$partial/manifest"
  split -b "${PIECE_KIB}K" -d --suffix-length=2 --numeric-suffixes=1 \
    "$BRINGUP/$WHOLE.partial" "$partial/piece-"
  rm "$BRINGUP/$WHOLE.partial"
  local piece
  for piece in "$partial"/piece-*; do
    printf '%s\t%s\t%s\n' "${piece##*/}" "$(bytes_of "$piece")" "$(sha_of "$piece")"
  done >>"$partial/manifest"
  mv "$partial" "$BRINGUP/pieces"
  list_pieces
  say "packed in $((SECONDS - start)) s; next: scripts/gpu_bringup.sh send 1"
}

list_pieces() {
  local manifest=$BRINGUP/pieces/manifest
  [ -f "$manifest" ] || fail "$manifest expected (scripts/gpu_bringup.sh pack), found none"
  awk -F'\t' '$1 != "needs" { printf "%-18s %8.1f MB  %s\n", $1, $2 / 1e6, substr($3, 1, 16) }' \
    "$manifest"
}

send() {
  if [ $# -eq 0 ]; then
    list_pieces
    return
  fi
  [[ $1 =~ ^[0-9]+$ ]] || fail "send: a piece's number expected, found '$1'"
  local name manifest=$BRINGUP/pieces/manifest
  name=$(printf 'piece-%02d' "$((10#$1))")
  [ -f "$manifest" ] || fail "$manifest expected (scripts/gpu_bringup.sh pack), found none"
  [ -n "$(field "$manifest" "$name" 2)" ] ||
    fail "send: a piece from 1 to $(pieces_in "$manifest" | wc -l) expected, found $1"
  rm -rf "$BRINGUP/send"
  mkdir -p "$BRINGUP/send/zstd"
  cp "$manifest" "$BRINGUP/send/manifest"
  ln "$BRINGUP/pieces/$name" "$BRINGUP/send/$name" 2>/dev/null ||
    cp "$BRINGUP/pieces/$name" "$BRINGUP/send/$name"
  # zstd itself, for a machine that has none.
  cp -L "$(command -v zstd)" "$BRINGUP/send/zstd/zstd"
  ldd "$(command -v zstd)" | awk '$3 ~ /^\// && $1 !~ /^lib(c|m|pthread|dl|rt)\.so/ { print $3 }' |
    xargs -r cp -L -t "$BRINGUP/send/zstd"
  local total
  total=$({
    git ls-files -co --exclude-standard -z | xargs -0 stat -c %s 2>/dev/null
    find "$BRINGUP/send" -type f -printf '%s\n'
  } | awk '{ sum += $1 } END { print sum + 0 }')
  say "$name, $(mebi "$(bytes_of "$BRINGUP/send/$name")"); with the repository $(mebi "$total")"
  [ "$total" -le $((TRAVELS_KIB * 1024)) ] ||
    say "warning: $(mebi $((TRAVELS_KIB * 1024))) in all expected; pack smaller pieces (RN50_BRINGUP_PIECE_KIB)"
  say "carry $BRINGUP/send and run there:"
  echo "scripts/gpu_bringup.sh receive"
}

receive() {
  local from=$BRINGUP/send to=$BRINGUP/received name found missing=()
  [ -f "$from/manifest" ] || fail "$from/manifest expected (carry $from), found none"
  mkdir -p "$to"
  [ -f "$BRINGUP/.gitignore" ] || echo '*' >"$BRINGUP/.gitignore"
  if [ -f "$to/manifest" ] && ! cmp -s "$from/manifest" "$to/manifest"; then
    say "pieces of another packing: starting anew"
    rm -rf "$to"
    mkdir -p "$to"
  fi
  cp "$from/manifest" "$to/manifest.partial"
  mv "$to/manifest.partial" "$to/manifest"
  for found in "$from"/piece-*; do
    [ -f "$found" ] || continue
    name=${found##*/}
    [ -n "$(field "$to/manifest" "$name" 3)" ] || fail "$found: a piece of the manifest expected"
    verify "$found" "$to/manifest" "$name"
    if [ ! -f "$to/$name" ]; then
      cp "$found" "$to/$name.partial"
      mv "$to/$name.partial" "$to/$name"
    fi
  done
  for name in $(pieces_in "$to/manifest"); do [ -f "$to/$name" ] || missing+=("$name"); done
  if [ ${#missing[@]} -gt 0 ]; then
    say "received $(($(pieces_in "$to/manifest" | wc -l) - ${#missing[@]})), missing: ${missing[*]}"
    return
  fi
  unpack "$to"
}

verify() { # FILE MANIFEST NAME
  local bytes sha
  bytes=$(field "$2" "$3" 2)
  sha=$(field "$2" "$3" 3)
  [ "$(bytes_of "$1")" = "$bytes" ] || fail "$1: $bytes bytes expected, found $(bytes_of "$1")"
  local found
  found=$(sha_of "$1")
  [ "$found" = "$sha" ] || fail "$1: sha256 $sha expected, found $found"
}

unpack() { # FOLDER WITH ALL PIECES
  local manifest=$1/manifest target=$BRINGUP/target whole name found zstd=zstd
  whole=$(field "$manifest" $WHOLE 3)
  if [ "$(cat "$target/whole" 2>/dev/null)" = "$whole" ]; then
    say "all pieces are here and unpacked in $target"
    return
  fi
  local pieces=()
  for name in $(pieces_in "$manifest"); do
    verify "$1/$name" "$manifest" "$name"
    pieces+=("$1/$name")
  done
  found=$(cat "${pieces[@]}" | sha256sum | cut -d' ' -f1)
  [ "$found" = "$whole" ] || fail "$1: together sha256 $whole expected, found $found"
  local glibc has
  glibc=$(awk -F'\t' '$1 == "needs" && $2 == "glibc" { print $3 }' "$manifest")
  has=$(getconf GNU_LIBC_VERSION | cut -d' ' -f2)
  [ "$(printf '%s\n' "$glibc" "$has" | sort -V | head -n 1)" = "$glibc" ] ||
    fail "glibc $glibc or newer expected (what was packed needs it), found $has"
  if ! command -v zstd >/dev/null; then
    LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$(cd "$BRINGUP/send/zstd" && pwd)
    export LD_LIBRARY_PATH
    zstd=$BRINGUP/send/zstd/zstd
    chmod +x "$zstd" 2>/dev/null || true
    [ -x "$zstd" ] || fail "zstd expected (on the PATH or as $zstd), found none"
  fi
  say "unpacking into $target"
  rm -rf "$target" "$target.partial"
  mkdir -p "$target.partial"
  cat "${pieces[@]}" | "$zstd" -qdc --long=27 | tar -C "$target.partial" -xf -
  echo "$whole" >"$target.partial/whole"
  mv "$target.partial" "$target"
  say "ready in $SECONDS s: scripts/gpu_bringup.sh check"
}

find_driver() { # the folder of libcuda.so.1
  local found folder
  found=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null |
    awk '/libcuda\.so\.1 .*x86-64/ { print $NF; exit }')
  for folder in ${found:+"${found%/*}"} /usr/local/nvidia/lib64 /usr/local/nvidia/lib \
    /usr/lib/x86_64-linux-gnu /usr/lib64; do
    if [ -e "$folder/libcuda.so.1" ]; then
      echo "$folder"
      return
    fi
  done
}

probe() {
  local smi path=$PATH:/usr/local/nvidia/bin good=1
  smi=$(PATH=$path command -v nvidia-smi || true)
  if [ -n "$smi" ] && "$smi" -L >/dev/null 2>&1; then
    "$smi" --query-gpu=name,driver_version,compute_cap,memory.total --format=csv,noheader |
      sed 's/^/GPU, driver, compute capability, memory: /'
    "$smi" | sed -n 's/.*CUDA [^:]*Version: *\([0-9.]*\).*/CUDA driver API: \1/p' | head -n 1
  elif [ -r /proc/driver/nvidia/version ]; then
    cat /proc/driver/nvidia/gpus/*/information 2>/dev/null | sed -n 's/^Model:[ \t]*/GPU: /p'
    sed -n 's/^NVRM version:[ \t]*/driver: /p' /proc/driver/nvidia/version
    echo "nvidia-smi: expected, found none (compute capability and CUDA's version: see check)"
  else
    echo "no GPU: a driver (nvidia-smi or /proc/driver/nvidia) expected, found none"
    good=
  fi
  echo "libcuda.so.1: $(find_driver | grep . || echo none)"
  echo "glibc $(getconf GNU_LIBC_VERSION | cut -d' ' -f2), $(uname -m), $(nproc) cores," \
    "$(awk '/MemAvailable/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo) memory free," \
    "$(df -Ph . | awk 'NR == 2 { print $4 }') disk free," \
    "Python: $(python3 --version 2>/dev/null || echo none), zstd: $(command -v zstd || echo none)"
  [ -n "$good" ]
}

check() {
  local target=$BRINGUP/target driver code=0
  [ -x "$target/python" ] ||
    fail "$target/python expected (scripts/gpu_bringup.sh receive), found none"
  probe || true
  target=$(cd "$target" && pwd)
  driver=$(find_driver)
  if [ -n "$driver" ]; then # Horovod opens libcuda.so, which a driver alone does not have
    mkdir -p "$target/driver"
    ln -sf "$driver/libcuda.so.1" "$target/driver/libcuda.so"
    export LD_LIBRARY_PATH=$target/driver:$driver${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  fi
  export CUDA_MODULE_LOADING=LAZY CUDA_CACHE_PATH=$target/jit
  "$target/python" -m rn50.scripts.gpu_bringup.check --images "$target/images" \
    --out "$BRINGUP/results" "$@" || code=$?
  if [ -d "${OUT:-}" ]; then
    cp "$BRINGUP"/results/{results.json,table.txt} "$OUT" 2>/dev/null || true
    cat "$BRINGUP"/results/*.log >"$OUT/logs.txt" 2>/dev/null || true
  fi
  return "$code"
}

command=${1:-}
[ $# -eq 0 ] || shift
case "$command" in
  pack | probe | send | receive | check) "$command" "$@" ;;
  -h | --help) usage ;;
  *)
    usage >&2
    exit 2
    ;;
esac
