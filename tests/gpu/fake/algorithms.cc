// Which algorithms cuDNN 8.9 has for a convolution, in the order of its heuristics, and the memory that
// each takes: after its documentation and what its versions were seen to answer.
#include "call.h"

#include <cudnn.h>

#include <algorithm>

namespace fake {
namespace {

std::size_t channels_padded_to_8(const compute::Tensor& t) {  // as tensor cores want them
  return tensor_bytes(t) / t.size[1] * ((t.size[1] + 7) / 8 * 8);
}

}  // namespace

bool is_half_on_tensor_cores(const Convolving& what, const Algorithm& algorithm) {
  int major, minor;
  capability(&major, &minor);
  const bool allowed = what.c.math_type == CUDNN_TENSOR_OP_MATH ||
                       what.c.math_type == CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION;
  return algorithm.tensor_cores && allowed && major >= 7 && what.x.type == CUDNN_DATA_HALF;
}

std::vector<Algorithm> algorithms(const Convolving& what) {
  const compute::Filter& w = what.w;
  const bool last = w.format == CUDNN_TENSOR_NHWC;
  const bool half = what.x.type == CUDNN_DATA_HALF;
  const std::size_t each = compute::type_bytes(what.x.type);
  const std::size_t weights = compute::elements(compute::as_tensor(w));
  const bool is_3x3 = w.size[2] == 3 && w.size[3] == 3 && what.c.stride[0] == 1 &&
                      what.c.stride[1] == 1 && what.c.dilation[0] == 1 && what.c.dilation[1] == 1;
  const bool winograd = is_3x3 && !last;
  // 4 x 4 tiles of both tensors and of the filter, each of 36 places.
  const std::size_t tiles = std::size_t(what.y.size[0]) * ((what.y.size[2] + 3) / 4) *
                            ((what.y.size[3] + 3) / 4) * (what.x.size[1] + what.y.size[1]);
  const std::size_t transformed = 36 * each * (tiles + weights / 9);
  // Offsets of a filter's places; in the sum for filters, its parts in float.
  const std::size_t offsets = (weights / w.size[0] * 4 + 511) / 512 * 512;
  const std::size_t patches = weights / w.size[0] * what.y.size[2] * what.y.size[3] * each;
  std::size_t first = what.direction == Direction::kBackwardFilter ? 4 * 4 * weights : offsets;
  // Of NCHW in half precision both tensors are copied to NHWC for the tensor cores.
  if (half && !last) first = channels_padded_to_8(what.x) + channels_padded_to_8(what.y);
  switch (what.direction) {
    case Direction::kForward:
      return {{CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, true, true, true, first},
              {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, false, true, true, 0},
              {CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED, true, true, winograd, transformed},
              {CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD, false, true, winograd, 0},
              {CUDNN_CONVOLUTION_FWD_ALGO_GEMM, false, true, !last, patches},
              {CUDNN_CONVOLUTION_FWD_ALGO_FFT, false, true, false, 0},
              {CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING, false, true, false, 0},
              {CUDNN_CONVOLUTION_FWD_ALGO_DIRECT, false, true, false, 0}};
    case Direction::kBackwardData:
      return {{CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, true, true, true, first},
              {CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, false, false, true, 0},
              {CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED, true, true, winograd, transformed},
              {CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD, false, true, winograd, 0},
              {CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT, false, true, false, 0},
              {CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING, false, true, false, 0}};
    default:
      return {{CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, true, true, true, first},
              {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0, false, false, true, 0},
              {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3, false, false, !last, 4 * weights},
              {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED, true, true, winograd, transformed},
              {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT, false, true, false, 0},
              {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD, false, true, false, 0},
              {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING, false, true, false, 0}};
  }
}

const Algorithm* find(const std::vector<Algorithm>& among, int number) {
  for (const Algorithm& each : among)
    if (each.number == number) return &each;
  return nullptr;
}

namespace {

template <class Performance>
cudnnStatus_t list(const Convolving& what, int asked, int* returned, Performance* found) {
  auto all = algorithms(what);
  std::stable_partition(all.begin(), all.end(), [](const Algorithm& a) { return a.supported; });
  *returned = std::min(asked, int(all.size()));
  for (int i = 0; i < *returned; ++i) {
    const Algorithm& algorithm = all[i];
    std::memset(&found[i], 0, sizeof found[i]);
    found[i].algo = static_cast<decltype(found[i].algo)>(algorithm.number);
    found[i].time = -1;  // heuristics measure nothing
    found[i].status = algorithm.supported ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
    found[i].memory = algorithm.workspace_bytes;
    found[i].determinism = algorithm.deterministic ? CUDNN_DETERMINISTIC : CUDNN_NON_DETERMINISTIC;
    found[i].mathType =
        is_half_on_tensor_cores(what, algorithm) ? CUDNN_TENSOR_OP_MATH : CUDNN_DEFAULT_MATH;
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t workspace(const Convolving& what, int number, std::size_t* bytes) {
  const auto all = algorithms(what);
  const Algorithm* algorithm = find(all, number);
  if (algorithm == nullptr) return CUDNN_STATUS_BAD_PARAM;
  if (!algorithm->supported) return CUDNN_STATUS_NOT_SUPPORTED;
  *bytes = algorithm->workspace_bytes;
  return CUDNN_STATUS_SUCCESS;
}

template <class To, class From>
const To& as(From descriptor) {
  return *reinterpret_cast<const To*>(descriptor);
}

Convolving convolving(Direction direction, cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                      cudnnConvolutionDescriptor_t c, cudnnTensorDescriptor_t y) {
  return {direction, as<compute::Tensor>(x), as<compute::Filter>(w), as<compute::Convolution>(c),
          as<compute::Tensor>(y)};
}

}  // namespace
}  // namespace fake

// A, B, D: the descriptors in the order of the function's parameters, the convolution's between them.
#define CONVOLUTION(Kind, Short, direction, A, a, B, b, D, d)                                        \
  FAKE cudnnStatus_t cudnnGetConvolution##Kind##AlgorithmMaxCount(cudnnHandle_t, int* count) {       \
    *count = CUDNN_CONVOLUTION_##direction##_ALGO_COUNT;                                             \
    return CUDNN_STATUS_SUCCESS;                                                                     \
  }                                                                                                  \
  FAKE cudnnStatus_t cudnnGetConvolution##Kind##Algorithm_v7(                                        \
      cudnnHandle_t handle, const A a, const B b, const cudnnConvolutionDescriptor_t c, const D d,          \
      int asked, int* returned, cudnnConvolution##Short##AlgoPerf_t* found) {                        \
    const fake::Holding holding(handle);                                                             \
    if (!holding.alone()) return CUDNN_STATUS_EXECUTION_FAILED;                                      \
    return fake::list(fake::convolving(fake::Direction::k##Kind, x, w, c, y), asked, returned, found); \
  }                                                                                                  \
  FAKE cudnnStatus_t cudnnFindConvolution##Kind##Algorithm(                                          \
      cudnnHandle_t, const A a, const B b, const cudnnConvolutionDescriptor_t c, const D d,          \
      int asked, int* returned, cudnnConvolution##Short##AlgoPerf_t* found) {                        \
    return fake::list(fake::convolving(fake::Direction::k##Kind, x, w, c, y), asked, returned, found); \
  }                                                                                                  \
  FAKE cudnnStatus_t cudnnGetConvolution##Kind##WorkspaceSize(                                       \
      cudnnHandle_t, const A a, const B b, const cudnnConvolutionDescriptor_t c, const D d,          \
      cudnnConvolution##Short##Algo_t algorithm, size_t* bytes) {                                    \
    return fake::workspace(fake::convolving(fake::Direction::k##Kind, x, w, c, y), algorithm, bytes); \
  }
CONVOLUTION(Forward, Fwd, FWD, cudnnTensorDescriptor_t, x, cudnnFilterDescriptor_t, w,
            cudnnTensorDescriptor_t, y)
CONVOLUTION(BackwardData, BwdData, BWD_DATA, cudnnFilterDescriptor_t, w, cudnnTensorDescriptor_t, y,
            cudnnTensorDescriptor_t, x)
CONVOLUTION(BackwardFilter, BwdFilter, BWD_FILTER, cudnnTensorDescriptor_t, x,
            cudnnTensorDescriptor_t, y, cudnnFilterDescriptor_t, w)
