#!/usr/bin/env bash
# Makes .venv: a suitable Python, locked requirements, Horovod built for MXNet. Safe to run again:
# seconds when nothing has changed. PYTHON=/path/to/python names the one for a new environment.
#   scripts/setup.sh          CPU ranks over MPI (installed where it may be) and Gloo
#   scripts/setup.sh --gpu    GPU ranks over NCCL; no GPU and no driver is needed to set up
#   scripts/setup.sh --system-mxnet   MXNet and Horovod that this Python has already, such as a container's
#   ... --into FOLDER         another environment than .venv, beside it
#   ... --stack               only what runs need, without rn50 itself: a container's lowest layer
set -euo pipefail
cd "$(dirname "$0")/.."

newest_compiler=14 # of those that Horovod's build was tried with; oldest: 12

exec 3>&2 # also where a command's output goes to the log
say() { printf '[setup %3d s] %s\n' "$SECONDS" "$*" >&3; }
fail() {
  printf 'setup: error: %s\n' "$*" >&2
  exit 1
}
# still WHAT LOG: every 15 s a line with the last step that the log names, as long as this script runs
still() {
  local never step
  exec {never}<> <(:) 9>&- # to wait on without a process that outlives this one
  while read -r -t 15 -u "$never" || kill -0 $$ 2>/dev/null; do
    # uv's, pip's and CMake's; what pip says beside them is no step
    step=$(tr '\r' '\n' <"$2" | awk '
      /^== / { step = "" }
      /^ *(Collecting|Downloading|Installing|Building|Prepar|\[ *[0-9]+%\])/ { step = $0 }
      END { sub(/^ */, "", step); sub(/: .*/, "", step); print step }')
    say "still $1${step:+: ${step:0:100}}"
  done
}
# quietly WHAT COMMAND...: output to the log; on failure its last lines and one clear line
quietly() {
  local what=$1 code=0 watch
  shift
  say "$what"
  printf '\n== %s: %s\n' "$what" "$*" >>"$log"
  still "$what" "$log" &
  watch=$!
  "$@" >>"$log" 2>&1 || code=$?
  kill "$watch"
  if [ $code != 0 ]; then
    tail -n 15 "$log" >&2
    fail "$what failed; the whole output is in $log"
  fi
}

usable_python() { # 3.10 to 3.13 with venv and pip
  "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' \
    >/dev/null 2>&1
}

find_python() { # the one that PYTHON names, or the newest of the PATH and the system
  local name names=(python3.{13..10} python3 /usr/bin/python3.{13..10} /usr/bin/python3)
  if [ -n "${PYTHON:-}" ]; then names=("$PYTHON"); fi
  for name in "${names[@]}"; do
    if usable_python "$name"; then
      command -v "$name"
      return
    fi
  done
  return 1
}

# The g++ to build Horovod with: CXX, the system's own, or the newest beside it that has been tried.
find_compiler() {
  local name release
  for name in ${CXX:-} g++ g++-{14..12}; do
    release=$("$name" -dumpversion 2>/dev/null) || continue
    if [ "${release%%.*}" -le $newest_compiler ]; then
      echo "$name"
      return
    fi
  done
  return 1
}

may_apt() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

apt_install() {
  say "installing $* (apt)"
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "$@"; } >>"${TMPDIR:-/tmp}/rn50-apt.log" 2>&1
}

gpu=
system_mxnet=
stack_only=
venv=.venv
while [ $# -gt 0 ]; do
  case "$1" in
    --gpu) gpu=1 ;;
    --system-mxnet) system_mxnet=1 ;;
    --stack) stack_only=1 ;;
    --into)
      [ -n "${2:-}" ] || fail "--into: a folder expected, found none"
      venv=$2
      shift
      ;;
    -h | --help)
      sed -n '2,9s/^# \{0,1\}//p' "$0"
      exit 0
      ;;
    *) fail "unknown argument $1; --gpu, --system-mxnet, --into FOLDER, --stack or nothing expected" ;;
  esac
  shift
done
[ -z "$gpu" ] || [ -z "$system_mxnet" ] || fail "--gpu or --system-mxnet expected, found both"
case "$venv" in /*) ;; *) venv=$PWD/$venv ;; esac
log=$venv/setup.log
stamp=$venv/setup.stamp
stack_stamp=$venv/stack.stamp
if [ -n "$(ls -A "$venv" 2>/dev/null)" ] && ! [ -f "$venv/pyvenv.cfg" ]; then
  fail "--into: a new folder or a Python environment expected, found $venv with other things"
fi

# A stamp holds a line for CPU ranks and, where they were set up, one for GPU ranks: an environment
# for these serves CPU ranks as well.
print_of() { # print_of cpu|gpu FILE...
  local kind=$1
  shift
  if [ "$kind" = gpu ]; then set -- "$@" requirements-gpu.txt scripts/setup_gpu.sh scripts/horovod_kernels.cc; fi
  echo "$kind $(cat requirements/*.txt scripts/setup.sh "$@" | sha256sum)"
}
holds() { [ -f "$1" ] && grep -qxF "$2" "$1"; } # holds STAMP PRINT
# An environment for GPUs stays one, also where a pull has changed what it is made of.
if [ -z "$system_mxnet" ] && grep -q '^gpu ' "$stack_stamp" 2>/dev/null; then gpu=1; fi
kind=${gpu:+gpu}${system_mxnet:+system}
kind=${kind:-cpu}
mpi_has_headers() { # though there may be no compiler yet that has_mpi could ask
  local include
  for include in $(mpicxx -show 2>/dev/null | grep -o -- '-I[^ ]*'); do
    if [ -f "${include#-I}/mpi.h" ]; then return; fi
  done
  return 1
}
mpi_is_new() { holds "$stack_stamp" "without MPI" && mpi_has_headers; } # Horovod is built anew
stack_is_done() { holds "$stack_stamp" "$(print_of "$kind")" && ! mpi_is_new; }
# The checkout and the environment that belong together. Scripts of the one name the other, so that
# in a copy of both they would run what lies at the old place.
place=$venv/setup.place
lies_here() { # an environment that was not made here has no such file
  local checkout environment
  if ! [ -f "$place" ]; then return; fi
  { read -r checkout && read -r environment; } <"$place" || return
  [ "$checkout" -ef . ] && [ "$environment" -ef "$venv" ]
}
# What a purge by age took: a line a package.
losses() { "$venv/bin/python" -I launch/installed.py check 2>&1; }
all_is_done() {
  if [ -n "$stack_only" ]; then
    lies_here && stack_is_done
  else
    lies_here && ! mpi_is_new && holds "$stamp" "$(print_of "$kind" pyproject.toml)" && losses >/dev/null
  fi
}
all_is_done && exit 0
if [ -n "$gpu" ]; then
  # shellcheck source=scripts/setup_gpu.sh
  . scripts/setup_gpu.sh
fi
write_stamp() { # write_stamp STAMP FILE...
  local stamp=$1
  shift
  if [ -n "$system_mxnet" ]; then
    print_of system "$@" >"$stamp"
    return
  fi
  print_of cpu "$@" >"$stamp"
  if [ -n "$gpu" ]; then print_of gpu "$@" >>"$stamp"; fi
  if [ -z "$mpi" ]; then echo "without MPI" >>"$stamp"; fi
}

# One set-up at a time: the commands that call this may be started side by side.
if command -v flock >/dev/null; then
  exec 9>.setup.lock
  flock 9
  all_is_done && exit 0
fi

python=$(find_python) || {
  if [ -z "${PYTHON:-}" ] && may_apt; then apt_install python3 python3-venv || true; fi
  python=$(find_python) ||
    fail "Python 3.10 to 3.13 with venv expected${PYTHON:+ of PYTHON=$PYTHON}, found $(
      "${PYTHON:-python3}" --version 2>/dev/null || echo none
    ); name one by PYTHON=/path/to/python or install one (Debian, with all else that set-up needs: apt-get install python3 python3-venv g++ make openmpi-bin libopenmpi-dev)"
}
missing=()
for tool in g++ make; do command -v "$tool" >/dev/null || missing+=("$tool"); done
for library in libgomp:1 libquadmath:0; do # MXNet's wheel links to them
  PATH=$PATH:/sbin:/usr/sbin ldconfig -p | grep "${library/:/.so.}" >/dev/null || # -q ends ldconfig by SIGPIPE
    missing+=("${library/:/}")
done
# Puts the MPI to build with into $mpi, as openmpi-4.1.4 or mpich-4.0.2. Its headers say it: Debian's
# openmpi-bin alone has mpicxx without them, and the mpirun of either family is called so.
has_mpi() {
  mpi=$(mpicxx -E -dM -x c++ -include mpi.h /dev/null 2>/dev/null | awk '
    { gsub("\"", "", $3); defined[$2] = $3 }
    END {
      if (major = defined["OMPI_MAJOR_VERSION"])
        print "openmpi-" major "." defined["OMPI_MINOR_VERSION"] "." defined["OMPI_RELEASE_VERSION"]
      else if (version = defined["I_MPI_VERSION"]) print "intelmpi-" version
      else if (version = defined["MPICH_VERSION"]) print "mpich-" version
      else if (version = defined["MPI_VERSION"]) print "mpi-of-standard-" version
    }')
  [ -n "$mpi" ]
}
if ! has_mpi && ! mpi_has_headers && may_apt; then missing+=(openmpi-bin libopenmpi-dev); fi
if [ ${#missing[@]} -gt 0 ]; then
  may_apt || fail "${missing[*]} expected, found none; install them (as root: apt-get install ${missing[*]})"
  apt_install "${missing[@]}" ||
    say "apt could not install ${missing[*]} (${TMPDIR:-/tmp}/rn50-apt.log)"
  for tool in g++ make; do
    command -v "$tool" >/dev/null || fail "$tool expected, found none"
  done
fi
if ! cxx=$(find_compiler); then
  if may_apt; then apt_install g++-14 || apt_install g++-13 || true; fi
  cxx=$(find_compiler) || cxx=g++ # a newer one: not tried, and it may do
fi
found="Python $("$python" -V | cut -d' ' -f2), $cxx $("$cxx" -dumpfullversion)"
if has_mpi; then
  say "$found, $mpi"
else
  say "$found, no MPI to build with: ranks talk by Gloo (Debian: apt-get install openmpi-bin libopenmpi-dev)"
fi

if ! lies_here; then
  say "$venv was made at another place, for $(head -n 1 "$place"): making it anew"
  rm -rf "$venv"
elif [ -f "$stamp" ] && usable_python "$venv/bin/python" && ! lost=$(losses); then
  say "files of $venv are gone (${lost%%$'\n'*}): making it anew"
  rm -rf "$venv"
fi
if ! [ -x "$venv/bin/python" ] || ! usable_python "$venv/bin/python"; then
  rm -rf "$venv"
  "$python" -m venv ${system_mxnet:+--system-site-packages} "$venv" || fail "$python cannot make a virtual environment in $venv"
  printf '%s\n' "$PWD" "$venv" >"$place"
fi
rm -f "$stamp"
: >"$log"
export PIP_PROGRESS_BAR=off # a line of the log names what is loaded, and how large it is
# What a user's pip.conf or shell says of other environments, not of this one.
export PIP_USER=0 PYTHONNOUSERSITE=1
unset PIP_TARGET PIP_PREFIX PIP_ROOT
if [ -z "$system_mxnet" ]; then unset PYTHONPATH; fi # another NumPy, say, that a module brought
pip=("$venv/bin/python" -m pip --disable-pip-version-check)

# uv installs in seconds what takes pip two minutes. It does not read where pip's settings say that
# packages come from.
tell_uv_of_pip() {
  local key value
  while IFS='=' read -r key value; do
    value=${value#\'}
    value=${value%\'}
    case "${key##*.}" in
      index-url) export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$value}" ;;
      extra-index-url) export UV_INDEX="${UV_INDEX:-$value}" ;;
      find-links) export UV_FIND_LINKS="${UV_FIND_LINKS:-${value// /,}}" ;;
      trusted-host) export UV_INSECURE_HOST="${UV_INSECURE_HOST:-$value}" ;;
      cert) export SSL_CERT_FILE="${SSL_CERT_FILE:-$value}" ;;
      no-index) export UV_NO_INDEX=1 ;;
    esac
  done < <("${pip[@]}" config list)
  export UV_INDEX_STRATEGY=unsafe-best-match # as pip looks; the hashes make it safe
}
find_uv() { # puts into $uv that of the PATH if it is of 0.5 or later, else the locked one, else nothing
  local release
  release=$(uv --version 2>/dev/null | cut -d' ' -f2) || true
  if [ "$(printf '%s\n' 0.5 "${release:-0}" | sort -V | head -n 1)" = 0.5 ]; then
    uv=$(command -v uv)
  elif "${pip[@]}" install --no-deps --require-hashes -r requirements/uv.txt >>"$log" 2>&1; then
    uv=$venv/bin/uv
  else
    uv=
    say "no uv to be had ($log): pip installs, which takes minutes"
    return
  fi
  tell_uv_of_pip
}
install() { # install OPTION...: of uv and pip alike
  if [ -n "$uv" ]; then
    if "$uv" pip install --python "$venv/bin/python" --no-deps "$@"; then return; fi
    say "uv could not ($log): pip tries, which takes minutes"
    uv=
  fi
  "${pip[@]}" install --no-deps "$@"
}
count() { grep -c '^[a-zA-Z0-9]' "$1"; }

# With train/mxnet_import.py, without which MXNet does not load over NumPy 2: Horovod's CMake asks it
# for its folders before rn50 is installed.
use_mxnet_import() {
  mkdir -p "$venv/mxnet_import"
  cp train/mxnet_import.py "$venv/mxnet_import/"
  echo 'import sys, mxnet_import; sys.meta_path.insert(0, mxnet_import.MXNetFinder())' \
    >"$venv/mxnet_import/sitecustomize.py"
  with_mxnet=(env "PYTHONPATH=$venv/mxnet_import${PYTHONPATH:+:$PYTHONPATH}")
}

build_horovod() { # once, though several set-ups may ask for it
  local partial=$wheels.partial
  mkdir -p "${wheels%/*}"
  exec 8>"$wheels.lock"
  if command -v flock >/dev/null; then flock 8; fi
  if has_wheel; then return; fi
  rm -rf "$partial"
  mkdir -p "$partial/source"
  "${pip[@]}" download --no-deps --no-cache-dir --no-build-isolation --no-binary :all: \
    --require-hashes -r requirements/horovod.txt -d "$partial"
  tar -xzf "$partial"/horovod-*.tar.gz -C "$partial/source" --strip-components=1
  # An operator that nothing calls assigns to a const member, which g++ 14 does not let pass.
  sed -i '/ span &operator=(const span &other)/,/^  }/d' \
    "$partial/source/third_party/flatbuffers/include/flatbuffers/stl_emulation.h"
  # The same code without what a debugger reads of it, which takes a fifth of the build's time.
  sed -i 's/RelWithDebInfo/Release/' "$partial/source/setup.py"
  if [ -n "$gpu" ]; then patch_horovod "$partial/source"; fi
  # Headers that its sources leave to others to include, which those of g++ 13 no longer do.
  "${with_mxnet[@]}" PATH="$venv/bin:$PATH" CXX="$cxx" \
    CXXFLAGS="${CXXFLAGS:-} -include string -include cstdint -include memory -include stdexcept" \
    "${flags[@]}" "${pip[@]}" wheel -v --no-deps --no-build-isolation "$partial/source" -w "$partial"
  rm -rf "$partial/source" "$partial"/*.tar.gz "$wheels"
  mv "$partial" "$wheels"
}
has_wheel() { ls "$wheels"/horovod-*.whl >/dev/null 2>&1; }
# MXNet, Horovod, NumPy, CUDA's libraries and MPI stay those of the system's Python; of the lock what it
# lacks otherwise is installed, DALI too.
install_beside_system() {
  local lock kept
  rm -f "$stack_stamp"
  use_mxnet_import
  quietly "looking for MXNet and Horovod of $python" "${with_mxnet[@]}" "$venv/bin/python" -c \
    'import mxnet, horovod.mxnet as hvd; assert hvd.size and mxnet.__version__ >= "1.9"'
  lock=requirements/$("$venv/bin/python" -c 'import sys; print("py%d%d" % sys.version_info[:2])').txt
  kept=$("${pip[@]}" list --format=freeze | sed 's/[=@ ].*//' | tr 'A-Z_' 'a-z-' | paste -sd '|')
  # What MXNet and Horovod need (the lock's first part) is there, or is taken from the lock.
  awk -v kept="^(mxnet|numpy)$|^($kept)$" '
    /^# To run/ { kept = "^(mxnet|numpy)$" }
    /^[a-zA-Z0-9]/ { name = $1; sub(/==.*/, "", name); skip = name ~ kept }
    !skip' "$lock" >"$venv/requirements.txt"
  quietly "installing $(count "$venv/requirements.txt") other packages" install --require-hashes -r "$venv/requirements.txt"
  write_stamp "$stack_stamp"
}
# Who runs an image may write nothing into it: uv leaves to the first import what pip compiles.
finish_stack() {
  quietly "removing what only set-up needs" "${pip[@]}" uninstall -y cmake uv
  say "compiling the packages"
  "$venv/bin/python" -m compileall -q -j 0 "$venv"/lib/python3.*/site-packages >>"$log" 2>&1 || true # of Python 2
}
install_stack() { # everything but rn50
  if [ -n "$system_mxnet" ]; then
    install_beside_system
    return
  fi
  rm -f "$stack_stamp"
  use_mxnet_import
  local lock requirements=$venv/requirements.txt
  lock=requirements/$("$venv/bin/python" -c 'import sys; print("py%d%d" % sys.version_info[:2])').txt
  mxnet=$(cat "$lock" ${gpu:+requirements-gpu.txt} | sed -n 's/^\(mxnet[^ ]*\).*/\1/p' | tail -n 1)
  cp "$lock" "$requirements"
  if [ -n "$stack_only" ]; then sed -i '/^# To test/,$d' "$requirements"; fi
  if [ -n "$gpu" ]; then sed -i '/^mxnet==/,/[^\\]$/d' "$requirements"; fi
  if [ -n "$gpu" ]; then other="mxnet"; else other="mxnet-cu112"; fi
  if "${pip[@]}" show -q "$other" 2>/dev/null; then # both hold the package mxnet
    quietly "removing $other" "${pip[@]}" uninstall -y mxnet mxnet-cu112
    rm -rf "$venv"/lib/python3.*/site-packages/mxnet # the links among what was installed
  fi
  if [ -n "$gpu" ]; then # MXNet links to all of it
    # Of an earlier set-up; it holds the files of that for CUDA 12.
    quietly "removing NCCL for CUDA 11" "${pip[@]}" uninstall -y nvidia-nccl-cu11
    quietly "installing ${mxnet%%=*} with CUDA, $(count requirements-gpu.txt) packages" install -r requirements-gpu.txt
  fi
  if [ -n "$gpu" ]; then link_cuda; fi

  # The build takes minutes, so its wheel is kept for every checkout of this user.
  local flags=(HOROVOD_WITH_MXNET=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1
    HOROVOD_WITH_GLOO=1)
  if [ -n "$mpi" ]; then flags+=(HOROVOD_WITH_MPI=1); else flags+=(HOROVOD_WITHOUT_MPI=1); fi
  key=$("$venv/bin/python" -c 'import sys; print(sys.implementation.cache_tag)')
  key+=-$(sed -n 's/^horovod==\([^ ]*\).*/\1/p' requirements/horovod.txt)
  key+=-$mxnet-mpi${mpi#openmpi-}-gcc$("$cxx" -dumpversion)-$(uname -m)
  if [ -n "$gpu" ]; then gpu_build; fi
  wheels=${XDG_CACHE_HOME:-$HOME/.cache}/rn50/wheels/${key//[^A-Za-z0-9.-]/_}
  build=
  if ! has_wheel; then
    sed '/^# To run/,$d' "$requirements" >"$venv/build.txt"
    quietly "installing what Horovod is built with" install --require-hashes -r "$venv/build.txt"
    say "building Horovod for MXNet in the background (2 to 5 minutes on two cores)"
    build_horovod >>"$venv/horovod.log" 2>&1 &
    build=$!
  fi
  quietly "installing $(count "$requirements") packages" install --require-hashes -r "$requirements"
  if [ -n "$build" ]; then
    say "waiting for Horovod"
    still "building Horovod" "$venv/horovod.log" &
    local watch=$! code=0
    wait "$build" || code=$?
    kill "$watch"
    if [ $code -gt 128 ]; then fail "building Horovod was ended by signal $((code - 128)); start again"; fi
    if [ $code != 0 ]; then
      tail -n 15 "$venv/horovod.log" >&2
      fail "building Horovod with $cxx $("$cxx" -dumpversion) failed; g++ 12 to $newest_compiler are known to" \
        "do (apt-get install g++-$newest_compiler or g++-12); the whole output is in $venv/horovod.log"
    fi
  fi
  quietly "installing Horovod" install --force-reinstall "$wheels"/horovod-*.whl
  if [ -n "$stack_only" ]; then finish_stack; fi
  if [ -n "$gpu" ]; then
    quietly "checking Horovod over NCCL" "${with_mxnet[@]}" "$venv/bin/python" -c \
      'import horovod.mxnet as hvd; assert hvd.nccl_built(), hvd.nccl_built()'
  fi
  write_stamp "$stack_stamp"
}
find_uv
if ! stack_is_done; then install_stack; fi # not ||, within which no failure would end it
if [ -n "$stack_only" ]; then exit; fi
if [ -n "$gpu" ]; then link_cuda; fi
quietly "installing rn50" install --no-build-isolation -e .
finish() { # side by side: none waits for another
  local job jobs=() code=0
  # What is installed in place nobody compiles: every command's first start would.
  "$venv/bin/python" -m compileall -q bench cli compliance \
    config data host launch logging predict report sweep train rn50/__init__.py &
  jobs+=($!)
  "$venv/bin/python" -m rn50.train.kernels &
  jobs+=($!)
  "$venv/bin/python" -c \
    'import rn50, horovod.mxnet as hvd, mlperf_logging.mllog, nvidia.dali, sys; assert hvd.gloo_built() or sys.argv[1:]' \
    ${system_mxnet:+system} & # whose Horovod may have MPI alone
  jobs+=($!)
  for job in "${jobs[@]}"; do wait "$job" || code=$?; done
  return "$code"
}
quietly "building our kernels, checking the stack" finish
"$venv/bin/python" -I launch/installed.py record
write_stamp "$stamp" pyproject.toml
say "ready: source ${venv#"$PWD"/}/bin/activate, then rn50 --help"
