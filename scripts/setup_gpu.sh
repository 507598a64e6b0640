# shellcheck shell=bash disable=SC2154
# What `scripts/setup.sh --gpu` adds to a CPU set-up; sourced by it. CUDA comes from pip alone, and of
# compilers only that of Horovod is asked for.

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

# Horovod without nvcc: our own file stands in for its CUDA kernels, and CMake looks for no toolkit.
patch_horovod() { # patch_horovod SOURCE
  local kernels=$1/horovod/common/ops/cuda
  cp scripts/horovod_kernels.cc "$kernels"
  cat >"$kernels/CMakeLists.txt" <<'END'
add_library(horovod_cuda_kernels horovod_kernels.cc)
target_link_libraries(horovod_cuda_kernels cudart)
add_library(compatible_horovod_cuda_kernels ALIAS horovod_cuda_kernels)
END
  echo 'set(CUDAToolkit_FOUND TRUE)' >"$1/cmake/upstream/FindCUDAToolkit.cmake"
  # Libraries are looked for in the folder of the links alone.
  # shellcheck disable=SC2016
  sed -i '/^project/a set(CMAKE_CUDA_COMPILER NOTFOUND)\
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)\
set(CMAKE_INSTALL_RPATH "$ORIGIN/../../mxnet")' "$1/CMakeLists.txt"
}

gpu_build() { # adds to flags and key what Horovod over NCCL is built with
  local site library headers
  site=$(site_packages)
  mkdir -p "$venv/cuda-link" # by the names that the linker looks for
  for library in nccl/lib/libnccl.so.2 cuda_runtime/lib/libcudart.so.11.0; do
    ln -sf "$site/nvidia/$library" "$venv/cuda-link/$(basename "${library%%.so*}").so"
  done
  # MXNet's headers include those of libraries that Horovod does not use.
  headers=$(printf '%s:' "$site"/nvidia/{cuda_runtime,cuda_nvcc,cublas,cudnn,curand,cusolver,cusparse}/include)
  flags+=("CPATH=${headers%:}" "LIBRARY_PATH=$venv/cuda-link"
    "LDFLAGS=-Wl,--disable-new-dtags" # RPATH, which LD_LIBRARY_PATH does not overrule
    HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_NCCL_LINK=SHARED
    "HOROVOD_NCCL_INCLUDE=$site/nvidia/nccl/include" "HOROVOD_NCCL_LIB=$venv/cuda-link")
  key+=-$(sed -n 's/^nvidia-\(nccl-cu[0-9]*\)==\(.*\)/\1-\2/p' requirements-gpu.txt)
  key+=-$(cat scripts/setup_gpu.sh scripts/horovod_kernels.cc | sha256sum | cut -c1-12)
}
