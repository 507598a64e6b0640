#!/usr/bin/env bash
# Makes .venv: a suitable Python, pinned requirements, Horovod built for MXNet. Safe to run again:
# seconds when nothing has changed.
#   scripts/setup.sh          CPU ranks over MPI (installed where it may be) and Gloo
#   scripts/setup.sh --gpu    GPU ranks over NCCL (needs the CUDA 11.8 toolkit; not run here)
#   ... --stack               only what runs need, without rn50 itself: a container's lowest layer
set -euo pipefail
cd "$(dirname "$0")/.."

horovod=0.28.1
build_tools=("setuptools<66" wheel "cmake==3.31.10" "cloudpickle==3.1.2" "psutil==7.2.2"
  "PyYAML==6.0.3" "packaging==26.3")
venv=.venv
log=$venv/setup.log
stamp=$venv/setup.stamp
stack_stamp=$venv/stack.stamp

say() { printf '[setup %3d s] %s\n' "$SECONDS" "$*" >&2; }
fail() {
  printf 'setup: error: %s\n' "$*" >&2
  exit 1
}
# quietly WHAT COMMAND...: output to the log; on failure its last lines and one clear line
quietly() {
  local what=$1
  shift
  say "$what"
  printf '\n== %s: %s\n' "$what" "$*" >>"$log"
  "$@" >>"$log" 2>&1 || {
    tail -n 15 "$log" >&2
    fail "$what failed; the whole output is in $log"
  }
}

usable_python() { # 3.10 or 3.11 with venv and pip
  "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info < (3, 12))' \
    >/dev/null 2>&1
}

find_python() {
  local name
  for name in ${PYTHON:+"$PYTHON"} python3.11 python3.10 python3 /usr/bin/python3.11 /usr/bin/python3; do
    if usable_python "$name"; then
      command -v "$name"
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
stack_only=
for argument in "$@"; do
  case "$argument" in
    --gpu) gpu=1 ;;
    --stack) stack_only=1 ;;
    -h | --help)
      sed -n '2,7s/^# \{0,1\}//p' "$0"
      exit 0
      ;;
    *) fail "unknown argument $argument; --gpu, --stack or nothing expected" ;;
  esac
done
print_of() { printf 'cpu%s-%s' "${gpu:+-and-gpu}" "$(cat "$@" | sha256sum)"; }
stack_print=$(print_of requirements*.txt scripts/setup.sh)
fingerprint=
if [ -z "$stack_only" ]; then
  fingerprint=$(print_of requirements*.txt pyproject.toml scripts/setup.sh)
fi
is_done() { # is_done STAMP FINGERPRINT; a GPU set-up serves CPU runs as well
  [ -f "$1" ] && case "$(cat "$1")" in
    "$2") true ;;
    "${2/cpu-/cpu-and-gpu-}") [ -z "$gpu" ] ;;
    *) false ;;
  esac
}
stack_is_done() { is_done "$stack_stamp" "$stack_print"; }
all_is_done() { if [ -n "$stack_only" ]; then stack_is_done; else is_done "$stamp" "$fingerprint"; fi; }
all_is_done && exit 0
if [ -n "$gpu" ] && ! stack_is_done; then
  nvcc --version 2>/dev/null | grep -q 'release 11\.' ||
    fail "--gpu: CUDA 11.8's nvcc on the PATH expected, found $(
      nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p' | grep . || echo none
    )"
fi

# One set-up at a time: the commands that call this may be started side by side.
if command -v flock >/dev/null; then
  exec 9>.setup.lock
  flock 9
  all_is_done && exit 0
fi

python=$(find_python) || {
  may_apt && apt_install python3 python3-venv || true
  python=$(find_python) ||
    fail "Python 3.10 or 3.11 with venv expected (MXNet 1.9.1 has no later one), found $(
      python3 --version 2>&1 || true
    ); name one by PYTHON=/path/to/python"
}
missing=()
for tool in g++ make; do command -v "$tool" >/dev/null || missing+=("$tool"); done
for library in libgomp:1 libquadmath:0; do # MXNet's wheel links to them
  PATH=$PATH:/sbin:/usr/sbin ldconfig -p | grep -q "${library/:/.so.}" || missing+=("${library/:/}")
done
has_mpi() { # to build with: Debian's openmpi-bin alone has mpicxx, but no headers
  command -v mpirun >/dev/null && mpicxx -E -x c++ -include mpi.h /dev/null >/dev/null 2>&1
}
if ! has_mpi && may_apt; then missing+=(openmpi-bin libopenmpi-dev); fi
if [ ${#missing[@]} -gt 0 ]; then
  may_apt || fail "${missing[*]} expected, found none; install them (as root: apt-get install ${missing[*]})"
  apt_install "${missing[@]}" ||
    say "apt could not install ${missing[*]} (${TMPDIR:-/tmp}/rn50-apt.log)"
  for tool in g++ make; do
    command -v "$tool" >/dev/null || fail "$tool expected, found none"
  done
fi
if has_mpi; then
  mpi=$(mpirun --version | sed -n '1s/.* //p')
  say "Python $("$python" -V | cut -d' ' -f2), Open MPI $mpi"
else
  mpi=
  say "Python $("$python" -V | cut -d' ' -f2), no Open MPI: ranks talk by Gloo"
fi

if ! [ -x $venv/bin/python ] || ! usable_python $venv/bin/python; then
  rm -rf $venv
  "$python" -m venv $venv || fail "$python cannot make a virtual environment in $venv"
fi
rm -f "$stamp"
: >"$log"
pip=("$venv/bin/python" -m pip --disable-pip-version-check)

build_horovod() {
  local partial=$wheels.partial-$$
  rm -rf "$partial"
  mkdir -p "$partial"
  env PATH="$PWD/$venv/bin:$PATH" "${flags[@]}" \
    "${pip[@]}" wheel --no-cache-dir --no-deps --no-build-isolation "horovod==$horovod" \
    -w "$partial"
  rm -rf "$wheels"
  mv "$partial" "$wheels"
}
cuda=$PWD/$venv/lib/cuda
has_nvcc() { command -v nvcc >/dev/null; }
if has_nvcc; then cuda_home=$(dirname "$(dirname "$(command -v nvcc)")"); fi
link_cuda() { # pip's CUDA libraries in one folder, for LD_LIBRARY_PATH
  mkdir -p "$cuda"
  ln -sf "$PWD"/$venv/lib/python3.*/site-packages/nvidia/*/lib/*.so* "$cuda"
  ln -sf libnccl.so.2 "$cuda/libnccl.so" # what the linker looks for
  export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$cuda
  # A machine without a driver can build too: MXNet loads with the stub of its libcuda.so.1.
  if ! PATH=$PATH:/sbin:/usr/sbin ldconfig -p | grep -q 'libcuda\.so\.1' && has_nvcc; then
    local stub
    stub=$(find -L "$cuda_home" -path '*/stubs/libcuda.so' -print -quit 2>/dev/null || true)
    mkdir -p $venv/lib/cuda-stub
    ln -sf "$stub" $venv/lib/cuda-stub/libcuda.so.1
    LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$PWD/$venv/lib/cuda-stub
  fi
}
install_stack() { # everything but rn50
  rm -f "$stack_stamp"
  requirements=$venv/requirements.txt
  mxnet=$(grep '^mxnet' requirements${gpu:+-gpu}.txt)
  cp requirements.txt "$requirements"
  if [ -n "$stack_only" ]; then sed -i '/^# Tests and checks/,/^$/d' "$requirements"; fi
  if [ -n "$gpu" ]; then
    sed -i '/^mxnet/d' "$requirements"
    cat requirements-gpu.txt >>"$requirements"
  fi
  if [ -n "$gpu" ]; then other="mxnet"; else other="mxnet-cu112"; fi
  if "${pip[@]}" show -q "$other" 2>/dev/null; then # both hold the package mxnet
    quietly "removing $other" "${pip[@]}" uninstall -y mxnet mxnet-cu112
  fi
  before_build=("${build_tools[@]}" "$mxnet" "$(grep '^numpy' requirements.txt)")
  if [ -n "$gpu" ]; then before_build+=(-r requirements-gpu.txt); fi # MXNet links to all of it
  quietly "installing ${mxnet%%=*} and build tools" "${pip[@]}" install "${before_build[@]}"
  if [ -n "$gpu" ]; then link_cuda; fi

  # The build takes minutes, so its wheel is kept for every checkout of this user.
  key=$("$venv/bin/python" -c 'import sys; print(sys.implementation.cache_tag)')
  key+=-$horovod-$mxnet-mpi${mpi:-none}-gcc$(g++ -dumpversion)-$(uname -m)
  wheels=${XDG_CACHE_HOME:-$HOME/.cache}/rn50/wheels/${key//[^A-Za-z0-9.-]/_}
  flags=(HOROVOD_WITH_MXNET=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1
    HOROVOD_WITH_GLOO=1)
  if [ -n "$mpi" ]; then flags+=(HOROVOD_WITH_MPI=1); else flags+=(HOROVOD_WITHOUT_MPI=1); fi
  if [ -n "$gpu" ]; then
    flags+=(HOROVOD_GPU_OPERATIONS=NCCL "HOROVOD_CUDA_HOME=$cuda_home"
      "HOROVOD_NCCL_INCLUDE=$(echo "$PWD"/$venv/lib/python3.*/site-packages/nvidia/nccl/include)"
      "HOROVOD_NCCL_LIB=$cuda")
    # CUDA 11.8's nvcc takes no g++ above 11; Debian's brings that one along.
    if [ "$(g++ -dumpversion | cut -d. -f1)" -gt 11 ] && command -v g++-11 >/dev/null; then
      flags+=("CUDAHOSTCXX=$(command -v g++-11)")
    fi
  fi
  build=
  if ! ls "$wheels"/horovod-*.whl >/dev/null 2>&1; then
    say "building Horovod $horovod for MXNet in the background (2 to 5 minutes on two cores)"
    build_horovod >>$venv/horovod.log 2>&1 &
    build=$!
  fi
  quietly "installing the requirements" "${pip[@]}" install -r "$requirements"
  if [ -n "$build" ]; then
    say "waiting for Horovod"
    wait "$build" || {
      tail -n 15 $venv/horovod.log >&2
      fail "building Horovod failed; the whole output is in $venv/horovod.log"
    }
  fi
  quietly "installing Horovod" "${pip[@]}" install --no-deps --force-reinstall "$wheels"/horovod-*.whl
  if [ -n "$stack_only" ]; then quietly "removing cmake" "${pip[@]}" uninstall -y cmake; fi
  echo "$stack_print" >"$stack_stamp"
}
if stack_is_done; then
  case "$(cat "$stack_stamp")" in cpu-and-gpu-*) gpu=1 ;; esac
else
  install_stack
fi
if [ -n "$stack_only" ]; then exit; fi
if [ -n "$gpu" ]; then link_cuda; fi
quietly "installing rn50" "${pip[@]}" install --no-deps --no-build-isolation -e .
quietly "building the optimizer's kernel" "$venv/bin/python" -m rn50.train.kernels
quietly "checking the stack" "$venv/bin/python" -c \
  'import horovod.mxnet as hvd, mlperf_logging.mllog, nvidia.dali; assert hvd.gloo_built()'
print_of requirements*.txt pyproject.toml scripts/setup.sh >"$stamp"
say "ready: source $venv/bin/activate, then rn50 --help"
