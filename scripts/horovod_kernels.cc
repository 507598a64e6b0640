// Horovod's only file for nvcc, cuda_kernels.cu, by the CUDA runtime alone: so Horovod is built without
// a CUDA toolkit. Copies go one by one. No sum of rn50 has a scale: it is refused.
#include "cuda_kernels.h"

#include <stdexcept>

namespace horovod {
namespace common {

void BatchedD2DMemcpyCudaImpl(BatchedD2DParams& params, int num_copies, cudaStream_t stream) {
  for (int n = 0; n < num_copies; ++n) {
    cudaError_t error = cudaMemcpyAsync(params.out[n], params.in[n], params.sizes[n],
                                        cudaMemcpyDeviceToDevice, stream);
    if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
  }
}

void ScaleBufferCudaImpl(const void*, void*, const int64_t, double, DataType, cudaStream_t) {
  throw std::logic_error("rn50's build of Horovod: op=hvd.Sum and scale factors of 1 expected on a GPU");
}

void BatchedScaledD2DMemcpyCudaImpl(BatchedD2DParams& params, int num_copies, double scale_factor,
                                    DataType dtype, cudaStream_t stream) {
  if (scale_factor != 1) ScaleBufferCudaImpl(nullptr, nullptr, 0, scale_factor, dtype, stream);
  BatchedD2DMemcpyCudaImpl(params, num_copies, stream);
}

}  // namespace common
}  // namespace horovod
