# shellcheck shell=bash disable=SC2154
# What `scripts/setup.sh --gpu` adds to a CPU set-up; sourced by it.
nvcc_version=11.8.89
capabilities=50,60,70,80,86,90 # of mxnet-cu112's machine code, and 9.0; Horovod's kernels get PTX of the last

site_packages() { "$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))'; }

# libmxnet.so looks for libraries in its own folder first (DT_RPATH $ORIGIN), Horovod's too (below):
# links there make both work with no variable set, and before whatever a cluster's modules name.
link_cuda() {
  local site library driver
  site=$(site_packages)
  find "$site/mxnet" -maxdepth 1 -type l -delete
  for library in "$site"/nvidia/*/lib/*.so*; do
    ln -s "..${library#"$site"}" "$site/mxnet/"
  done
  # Horovod opens the driver's library by the name that only development packages bring.
  driver=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p | sed -n '/libcuda\.so\.1 .*x86-64/s/.*=> //p')
  driver=${driver%%$'\n'*}
  ln -s "${driver:-/usr/lib/x86_64-linux-gnu/libcuda.so.1}" "$site/mxnet/libcuda.so"
  if [ -z "$driver" ]; then stub_driver "$site/mxnet/libmxnet.so"; fi
}

# A machine without a driver can be set up too: MXNet is imported with a stub, by set-up alone.
stub_driver() {
  mkdir -p "$venv/cuda-stub"
  nm -D --undefined-only "$1" |
    awk '$2 ~ /^cu[A-Z]/ { print "extern \"C\" int " $2 "() { return 100; }" }' | # no device
    g++ -shared -fPIC -Wl,-soname,libcuda.so.1 -x c++ - -o "$venv/cuda-stub/libcuda.so.1"
  export LD_LIBRARY_PATH=$venv/cuda-stub${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

release_of() { "$1" --version 2>/dev/null | sed -n 's/.*, V\([0-9.]*\).*/\1/p'; }

find_toolkit() { # sets toolkit: the folder of a CUDA 11 toolkit, or nothing
  local found kept
  found=$(release_of nvcc || true)
  case "$found" in
    11.*)
      toolkit=$(dirname "$(dirname "$(command -v nvcc)")")
      nvcc_version=$found
      # Older ones know no 9.0; the driver then compiles the PTX for 8.6.
      case "$found" in 11.8*) ;; *) capabilities=${capabilities%,90} ;; esac
      return
      ;;
  esac
  kept=${XDG_CACHE_HOME:-$HOME/.cache}/rn50/nvcc-$nvcc_version
  toolkit=$kept
  if [ -x "$kept/bin/nvcc" ]; then return; fi
  say "fetching nvcc $nvcc_version from Debian's archive (PATH has ${found:-none})"
  scripts/nvcc.sh "$kept" "$venv/bin/python" >>"$log" 2>&1 || toolkit=
}

find_host_compiler() { # for nvcc: 11.8 takes g++ up to 11; a later one compiles Horovod's kernels too
  local found
  found=$(g++ -dumpversion)
  if [ "${found%%.*}" -le 11 ]; then return; fi
  if ! command -v g++-11 >/dev/null && may_apt; then apt_install g++-11 || true; fi
  if command -v g++-11 >/dev/null; then
    flags+=("CUDAHOSTCXX=$(command -v g++-11)")
  else
    cuda_flags+=" -allow-unsupported-compiler"
  fi
}

# Horovod's setup.py hands no arguments to CMake, but calls the one that it is told.
write_cmake() { # write_cmake ARGUMENT...: $venv/cmake, which configures with these as well
  {
    echo '#!/usr/bin/env bash'
    # Without nvcc: as against the CPU's MXNet, since Horovod compiles its kernels for any other.
    if [ -z "$toolkit" ]; then
      # shellcheck disable=SC2016
      echo '[ "$1" = --build ] ||' \
        'sed -i "s/list(GET Mxnet_OUTPUT 5 Mxnet_USE_CUDA)/set(Mxnet_USE_CUDA FALSE)/"' \
        '"$1/cmake/Modules/FindMxnet.cmake"'
    fi
    # shellcheck disable=SC2016
    printf '[ "$1" = --build ] || set -- "$@"'
    if [ $# -gt 0 ]; then printf ' %q' "$@"; fi
    # shellcheck disable=SC2016
    printf '\nexec %q "$@"\n' "$venv/bin/cmake"
  } >"$venv/cmake"
  chmod +x "$venv/cmake"
  flags+=("HOROVOD_CMAKE=$venv/cmake")
}

gpu_build() { # adds to flags and key what Horovod over NCCL is built with
  local site nccl headers cuda_flags="--cudart=shared"
  find_toolkit
  rm -rf "$venv/nccl"
  if [ -z "$toolkit" ]; then
    [ -z "${stack_only:-}" ] || # an image without NCCL would be of no use
      fail "--gpu --stack: nvcc 11 on the PATH or from Debian's archive expected, found neither ($log)"
    say "--gpu: no nvcc 11 on the PATH or from Debian's archive ($log): Horovod gets no GPU operations"
    write_cmake
    key+=-without-nccl
    return
  fi
  site=$(site_packages)
  nccl=$(grep '^nvidia-nccl' requirements-gpu.txt)
  mkdir -p "$venv/nccl"
  ln -sf "$site/nvidia/nccl/lib/libnccl.so.2" "$venv/nccl/libnccl.so" # what the linker looks for
  headers=$(printf '%s:' "$site"/nvidia/{cublas,cudnn,curand,cusolver,cusparse}/include)
  headers=${headers%:} # MXNet's own include them
  find_host_compiler
  # The CUDA runtime shared, as MXNet and NCCL have it; of folders only the one of the links.
  # shellcheck disable=SC2016
  write_cmake -DCMAKE_CUDA_RUNTIME_LIBRARY=Shared -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON \
    '-DCMAKE_INSTALL_RPATH=$ORIGIN/../../mxnet'
  flags+=("PATH=$toolkit/bin:$venv/bin:$PATH" "CPATH=$headers" "LIBRARY_PATH=$toolkit/lib64"
    "CUDAFLAGS=$cuda_flags"
    "LDFLAGS=-Wl,--disable-new-dtags" # RPATH, which LD_LIBRARY_PATH does not overrule
    HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_NCCL_LINK=SHARED "HOROVOD_CUDA_HOME=$toolkit"
    "HOROVOD_NCCL_INCLUDE=$site/nvidia/nccl/include" "HOROVOD_NCCL_LIB=$venv/nccl"
    "HOROVOD_BUILD_CUDA_CC_LIST=$capabilities")
  key+=-nccl${nccl##*==}-nvcc$nvcc_version-$(sha256sum <scripts/setup_gpu.sh | cut -c1-12)
}
