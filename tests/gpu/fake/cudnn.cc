// cuDNN: descriptors are kept, every call is held against them (types, shapes, layouts, workspaces, and
// that each tensor lies on the device whole), and compute.cc does what the plan asks for. Where calls
// compute, all others are refused.
#include "call.h"

#include <cudnn.h>

#include <cstdlib>
#include <cstring>
#include <string>

using compute::Activation;
using compute::Blend;
using compute::Convolution;
using compute::Data;
using compute::Filter;
using compute::Pooling;
using compute::Tensor;
using fake::Call;
using fake::Direction;

namespace {

// Descriptors: large enough for any of them.
template <class T>
cudnnStatus_t make(T* descriptor) {
  *descriptor = static_cast<T>(std::calloc(1, 256));
  return CUDNN_STATUS_SUCCESS;
}
template <class To, class From>
const To& as(From descriptor) {
  return *reinterpret_cast<const To*>(descriptor);
}
template <class To, class From>
To& as_new(From descriptor) {
  return *reinterpret_cast<To*>(descriptor);
}
Data data(cudnnTensorDescriptor_t descriptor, const void* place) {
  return {as<Tensor>(descriptor), place};
}
cudnnStatus_t status(int code) { return static_cast<cudnnStatus_t>(code); }

// The factors of a call come from the host: double for tensors of doubles, else float.
float factor(const void* value, int type) {
  if (type == CUDNN_DATA_DOUBLE) return float(*static_cast<const double*>(value));
  return *static_cast<const float*>(value);
}
Blend blend(const void* alpha, const void* beta, const Tensor& t) {
  return {factor(alpha, t.type), factor(beta, t.type)};
}
std::string kind(const Tensor& t) {
  return std::string(fake::type_name(t.type)) + " " + fake::layout(t);
}

// One kind of convolution: x and y are the layer's input and output, or their gradients.
void check_convolution(Call& call, const Data& x, const Filter& w, const void* weights,
                       const Convolution& c, const Data& y, Direction direction, int number,
                       const void* space, std::size_t space_bytes) {
  const Tensor& in = x.tensor;
  const Tensor& out = y.tensor;
  call.same_type("types of input and filter", in.type, w.type)
      .same_type("types of input and output", in.type, out.type)
      .same("dimensions of a convolution, 2 and its own", 2, c.n)
      .same("channels of input and filter", in.size[1], w.size[1] * (c.groups ? c.groups : 1))
      .same("channels of output and filters", out.size[1], w.size[0])
      .same("batches of input and output", in.size[0], out.size[0]);
  for (int i = 0; i < c.n; ++i) {
    const int reach = c.dilation[i] * (w.size[2 + i] - 1) + 1;
    call.same("output sides, given and by the formula", out.size[2 + i],
              (in.size[2 + i] + 2 * c.pad[i] - reach) / c.stride[i] + 1);
    if (c.dilation[i] != 1) call.not_computed();
  }
  if (c.groups > 1) call.not_computed();
  if (c.mode != CUDNN_CROSS_CORRELATION) call.wrong("a flipped filter: cross-correlation expected");
  if (in.type == CUDNN_DATA_HALF && c.compute_type == CUDNN_DATA_HALF)
    call.wrong("sums in float16: float32 expected");
  const bool last = fake::is_channels_last(in);
  if (last != (w.format == CUDNN_TENSOR_NHWC) && in.size[1] > 1 && in.size[2] * in.size[3] > 1)
    call.wrong(std::string("input is ") + fake::layout(in) + ", its filter is not");
  const fake::Convolving what{direction, in, w, c, out};
  const auto all = fake::algorithms(what);
  const fake::Algorithm* algorithm = fake::find(all, number);
  if (algorithm == nullptr || !algorithm->supported) {
    call.wrong("algorithm " + std::to_string(number) + " does not take it", CUDNN_STATUS_NOT_SUPPORTED);
    return;
  }
  call.space("workspace", space, space_bytes, algorithm->workspace_bytes);
  if (in.type != CUDNN_DATA_HALF) return;
  if (!fake::is_half_on_tensor_cores(what, *algorithm)) {
    call.counts("convolutions without tensor cores");
    return;
  }
  call.aligned("filter", weights, 16);
  for (const Data* each : {&x, &y}) {
    call.aligned("a tensor", each->place, 16);
    const Tensor& t = each->tensor;
    if (fake::is_channels_last(t) || t.size[1] == 1 || t.size[2] * t.size[3] == 1) continue;
    call.counts("layout conversions").moves("conversion", 2 * fake::tensor_bytes(t));
  }
}

// --- batch norm: what the fused operations take, and their spaces -------------------------------------
bool takes_fused(cudnnBatchNormMode_t mode, const Tensor& x, cudnnActivationDescriptor_t activation) {
  return mode == CUDNN_BATCHNORM_SPATIAL_PERSISTENT && x.type == CUDNN_DATA_HALF && x.n == 4 &&
         fake::is_packed(x, true) && x.size[1] % 4 == 0 && activation != nullptr &&
         as<Activation>(activation).mode == CUDNN_ACTIVATION_RELU;
}

// What the forward pass leaves for the backward pass, in front of the ReLU's bits.
struct Reserve {
  std::uint64_t mark;
  const void* x;
  int operation, size[4];
  std::uint64_t statistics;
};
constexpr std::uint64_t kMark = 0x6e6f726d20726573;
constexpr std::size_t kReserveBytes = 512;
static_assert(sizeof(Reserve) <= kReserveBytes);

std::size_t reserve_bytes(cudnnBatchNormOps_t operation, const Tensor& x) {
  if (operation == CUDNN_BATCHNORM_OPS_BN) return fake::is_channels_last(x) ? kReserveBytes : 0;
  return kReserveBytes + (compute::elements(x) + 4095) / 4096 * 512;
}
std::size_t normalization_space_bytes(const Tensor& x) {
  return fake::is_channels_last(x) ? 8 * std::size_t(x.size[1]) * 108 + 512 : 0;
}

std::uint64_t digest(std::uint64_t sum, const void* place, std::size_t bytes) {
  if (place == nullptr) return sum;
  for (std::size_t i = 0; i < bytes; ++i)
    sum = (sum ^ static_cast<const unsigned char*>(place)[i]) * 1099511628211u;  // FNV-1a
  return sum;
}

Reserve reserve_of(cudnnBatchNormOps_t operation, const Data& x, const void* mean, const void* deviation) {
  const Tensor& t = x.tensor;
  const std::size_t bytes = 4 * std::size_t(t.size[1]);
  Reserve made;
  std::memset(&made, 0, sizeof made);
  made.mark = kMark;
  made.x = x.place;
  made.operation = operation;
  std::memcpy(made.size, t.size, sizeof made.size);
  made.statistics = digest(digest(14695981039346656037u, mean, bytes), deviation, bytes);
  return made;
}

struct Normalizing {
  const char* name;
  cudnnHandle_t handle;
  cudnnBatchNormMode_t mode;
  cudnnBatchNormOps_t operation;
  cudnnActivationDescriptor_t activation;
  void* space;
  std::size_t space_bytes;
  void* reserve;
  std::size_t reserve_bytes;

  bool is_plain() const { return space_bytes == SIZE_MAX; }
  bool adds() const { return operation == CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION; }
  bool rectifies() const { return operation != CUDNN_BATCHNORM_OPS_BN; }
  // The fused operation; of the ReLU's bits, and of z or its gradient.
  compute::Fused fused(const Data& z) const {
    if (!rectifies()) return {false, {}, nullptr};
    auto* mask = static_cast<unsigned char*>(reserve) + kReserveBytes;
    return {true, adds() ? z : Data{}, mask};
  }
};

// The plain functions: no spaces, and none expected.
Normalizing plain(const char* name, cudnnHandle_t handle, cudnnBatchNormMode_t mode) {
  return {name, handle, mode, CUDNN_BATCHNORM_OPS_BN, nullptr, nullptr, SIZE_MAX, nullptr, SIZE_MAX};
}

void check_normalization(Call& call, const Normalizing& how, const Data& x, const Data& y,
                         const Tensor& statistics) {
  if (how.mode == CUDNN_BATCHNORM_PER_ACTIVATION) call.wrong("a mode that is not spatial");
  if (how.rectifies() && !takes_fused(how.mode, x.tensor, how.activation)) {
    call.wrong("with ReLU it takes packed NHWC in float16, channels by 4, the persistent mode",
               CUDNN_STATUS_NOT_SUPPORTED);
    return;
  }
  call.same_type("types of input and output", x.tensor.type, y.tensor.type)
      .same_type("types of statistics, expected and given", CUDNN_DATA_FLOAT, statistics.type)
      .same("channels of input and statistics", x.tensor.size[1], statistics.size[1]);
  for (int axis = 0; axis < x.tensor.n; ++axis)
    call.same("sizes of input and output", x.tensor.size[axis], y.tensor.size[axis]);
  if (!how.is_plain()) {
    call.space("workspace", how.space, how.space_bytes, normalization_space_bytes(x.tensor));
    call.space("reserve space", how.reserve, how.reserve_bytes, reserve_bytes(how.operation, x.tensor));
  }
  if (how.rectifies()) call.moves(how.name, (compute::elements(x.tensor) + 7) / 8);
}

cudnnStatus_t forward(const Normalizing& how, Blend blend, const Data& x, const Data& z, const Data& y,
                      const Tensor& bd, const void* scale, const void* bias, double factor,
                      void* mean, void* variance, double epsilon, void* saved_mean,
                      void* saved_deviation) {
  Call call(how.name, how.handle);
  check_normalization(call, how, x, y, bd);
  if (how.is_plain()) call.not_computed();
  call.reads("input", x).writes("output", y, blend);
  if (how.adds()) call.reads("addend", z);
  for (const void* each : {scale, bias}) call.tensor("a parameter", {bd, each});
  for (const void* each : {mean, variance, saved_mean, saved_deviation})
    if (each) call.tensor("a statistic", {bd, each});
  if (!mean != !variance || !saved_mean != !saved_deviation) call.wrong("one statistic of two");
  const compute::Statistics statistics{static_cast<float*>(mean), static_cast<float*>(variance),
                                       static_cast<float*>(saved_mean),
                                       static_cast<float*>(saved_deviation)};
  auto normalize = [=] {
    compute::normalize_batch(x, blend, static_cast<const float*>(scale),
                             static_cast<const float*>(bias), factor, epsilon, statistics,
                             how.fused(z), y);
  };
  auto leave = [=] {
    if (how.reserve == nullptr || how.reserve_bytes < sizeof(Reserve)) return;
    const Reserve left = reserve_of(how.operation, x, saved_mean, saved_deviation);
    std::memcpy(how.reserve, &left, sizeof left);
  };
  return status(call.done(kind(x.tensor), normalize, nullptr, leave));
}

cudnnStatus_t backward(const Normalizing& how, Blend of_data, Blend of_parameters, const Data& x,
                       const Data& dy, const Data& dz, const Data& dx, const Tensor& bd,
                       const void* scale, void* d_scale, void* d_bias, const void* saved_mean,
                       const void* saved_deviation) {
  Call call(how.name, how.handle);
  check_normalization(call, how, x, dy, bd);
  if (how.is_plain()) call.not_computed();
  call.reads("input", x).reads("gradient out", dy).writes("gradient in", dx, of_data);
  if (how.adds()) call.writes("gradient of the addend", dz);
  for (const void* each : {scale, static_cast<const void*>(d_scale), static_cast<const void*>(d_bias)})
    call.tensor("a parameter or its gradient", {bd, each});
  for (const void* each : {saved_mean, saved_deviation}) call.tensor("a saved statistic", {bd, each});
  auto normalize = [=] {
    compute::normalize_back(x, dy, of_data, of_parameters, static_cast<const float*>(scale),
                            static_cast<float*>(d_scale), static_cast<float*>(d_bias),
                            static_cast<const float*>(saved_mean),
                            static_cast<const float*>(saved_deviation), how.fused(dz), dx);
  };
  auto check = [=] {
    if (how.reserve == nullptr || how.reserve_bytes < sizeof(Reserve)) return;
    const Reserve expected = reserve_of(how.operation, x, saved_mean, saved_deviation);
    if (std::memcmp(how.reserve, &expected, sizeof expected))
      fake::refuse(0, std::string(how.name) + ": the reserve space of another call");
  };
  return status(call.done(kind(x.tensor), normalize, check));
}

}  // namespace

// --- descriptors ----------------------------------------------------------------------------------
#define MAKE(kind) \
  FAKE cudnnStatus_t cudnnCreate##kind(cudnn##kind##_t* made) { return make(made); }
#define DESTROY(kind)                                       \
  FAKE cudnnStatus_t cudnnDestroy##kind(cudnn##kind##_t d) { \
    std::free(d);                                           \
    return CUDNN_STATUS_SUCCESS;                            \
  }
MAKE(ActivationDescriptor) MAKE(ConvolutionDescriptor) MAKE(DropoutDescriptor)
MAKE(FilterDescriptor) MAKE(PoolingDescriptor) MAKE(TensorDescriptor) MAKE(LRNDescriptor)
DESTROY(ActivationDescriptor) DESTROY(ConvolutionDescriptor) DESTROY(DropoutDescriptor)
DESTROY(FilterDescriptor) DESTROY(PoolingDescriptor) DESTROY(TensorDescriptor)
DESTROY(LRNDescriptor)

FAKE cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  make(handle);
  as_new<fake::Handle>(*handle) = {fake::current_device(), nullptr};
  return CUDNN_STATUS_SUCCESS;
}
FAKE cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  std::free(handle);
  return CUDNN_STATUS_SUCCESS;
}
FAKE cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  if (stream && fake::device_of(stream) != as<fake::Handle>(handle).device)
    return status(fake::refuse(CUDNN_STATUS_MAPPING_ERROR, "cudnnSetStream: another device's stream"));
  as_new<fake::Handle>(handle).stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
FAKE cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  *stream = static_cast<cudaStream_t>(as<fake::Handle>(handle).stream);
  return CUDNN_STATUS_SUCCESS;
}
FAKE size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
FAKE const char* cudnnGetErrorString(cudnnStatus_t code) {
  switch (code) {
    case CUDNN_STATUS_SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_MAPPING_ERROR: return "CUDNN_STATUS_MAPPING_ERROR";
    case CUDNN_STATUS_EXECUTION_FAILED: return "CUDNN_STATUS_EXECUTION_FAILED";
    case CUDNN_STATUS_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    default: return "an error of the fake cuDNN, see its line on stderr";
  }
}

FAKE cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t d, cudnnDataType_t type, int n,
                                              const int* size, const int* stride) {
  Tensor& t = as_new<Tensor>(d);
  t.type = type, t.n = n;
  std::memcpy(t.size, size, n * sizeof(int));
  std::memcpy(t.stride, stride, n * sizeof(int));
  return CUDNN_STATUS_SUCCESS;
}
FAKE cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t d, cudnnTensorFormat_t format,
                                              cudnnDataType_t type, int n, int c, int h, int w) {
  const int size[] = {n, c, h, w};
  const int first[] = {c * h * w, h * w, w, 1}, last[] = {c * h * w, 1, w * c, c};
  return cudnnSetTensorNdDescriptor(d, type, 4, size, format == CUDNN_TENSOR_NHWC ? last : first);
}
FAKE cudnnStatus_t cudnnSetTensor4dDescriptorEx(cudnnTensorDescriptor_t d, cudnnDataType_t type, int n,
                                                int c, int h, int w, int n_stride, int c_stride,
                                                int h_stride, int w_stride) {
  const int size[] = {n, c, h, w}, stride[] = {n_stride, c_stride, h_stride, w_stride};
  return cudnnSetTensorNdDescriptor(d, type, 4, size, stride);
}
FAKE cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t d, cudnnDataType_t type,
                                              cudnnTensorFormat_t format, int n, const int* size) {
  Filter& f = as_new<Filter>(d);
  f.type = type, f.format = format, f.n = n;
  std::memcpy(f.size, size, n * sizeof(int));
  return CUDNN_STATUS_SUCCESS;
}
FAKE cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t d, cudnnDataType_t type,
                                              cudnnTensorFormat_t format, int k, int c, int h, int w) {
  const int size[] = {k, c, h, w};
  return cudnnSetFilterNdDescriptor(d, type, format, 4, size);
}
FAKE cudnnStatus_t cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t d, int n,
                                                   const int* pad, const int* stride,
                                                   const int* dilation, cudnnConvolutionMode_t mode,
                                                   cudnnDataType_t compute_type) {
  Convolution& c = as_new<Convolution>(d);
  c.n = n, c.compute_type = compute_type, c.mode = mode;
  std::memcpy(c.pad, pad, n * sizeof(int));
  std::memcpy(c.stride, stride, n * sizeof(int));
  std::memcpy(c.dilation, dilation, n * sizeof(int));
  return CUDNN_STATUS_SUCCESS;
}
FAKE cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t d, int pad_h,
                                                   int pad_w, int u, int v, int dilation_h,
                                                   int dilation_w, cudnnConvolutionMode_t mode,
                                                   cudnnDataType_t compute_type) {
  const int pad[] = {pad_h, pad_w}, stride[] = {u, v}, dilation[] = {dilation_h, dilation_w};
  return cudnnSetConvolutionNdDescriptor(d, 2, pad, stride, dilation, mode, compute_type);
}
FAKE cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t d, cudnnMathType_t type) {
  as_new<Convolution>(d).math_type = type;
  return CUDNN_STATUS_SUCCESS;
}
FAKE cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t d, int groups) {
  as_new<Convolution>(d).groups = groups;
  return CUDNN_STATUS_SUCCESS;
}
FAKE cudnnStatus_t cudnnSetPoolingNdDescriptor(cudnnPoolingDescriptor_t d, cudnnPoolingMode_t mode,
                                               cudnnNanPropagation_t, int n, const int* window,
                                               const int* pad, const int* stride) {
  Pooling& p = as_new<Pooling>(d);
  p.n = n, p.mode = mode;
  std::memcpy(p.window, window, n * sizeof(int));
  std::memcpy(p.pad, pad, n * sizeof(int));
  std::memcpy(p.stride, stride, n * sizeof(int));
  return CUDNN_STATUS_SUCCESS;
}
FAKE cudnnStatus_t cudnnSetPooling2dDescriptor(cudnnPoolingDescriptor_t d, cudnnPoolingMode_t mode,
                                               cudnnNanPropagation_t nan, int window_h, int window_w,
                                               int pad_h, int pad_w, int stride_h, int stride_w) {
  const int window[] = {window_h, window_w}, pad[] = {pad_h, pad_w}, stride[] = {stride_h, stride_w};
  return cudnnSetPoolingNdDescriptor(d, mode, nan, 2, window, pad, stride);
}
FAKE cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t d,
                                                cudnnActivationMode_t mode,
                                                cudnnNanPropagation_t, double) {
  as_new<Activation>(d) = {mode};
  return CUDNN_STATUS_SUCCESS;
}
FAKE cudnnStatus_t cudnnDeriveBNTensorDescriptor(cudnnTensorDescriptor_t derived,
                                                 const cudnnTensorDescriptor_t x,
                                                 cudnnBatchNormMode_t) {
  const Tensor& t = as<Tensor>(x);
  return cudnnSetTensor4dDescriptor(
      derived, CUDNN_TENSOR_NCHW,
      t.type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT, 1, t.size[1], 1, 1);
}

// --- sizes of spaces; algorithms.cc has the convolutions' ----------------------------------------------
FAKE cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t operation,
    const cudnnTensorDescriptor_t xd, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnActivationDescriptor_t activation, size_t* bytes) {
  if (operation != CUDNN_BATCHNORM_OPS_BN && !takes_fused(mode, as<Tensor>(xd), activation))
    return CUDNN_STATUS_NOT_SUPPORTED;
  *bytes = normalization_space_bytes(as<Tensor>(xd));
  return CUDNN_STATUS_SUCCESS;
}
FAKE cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t operation,
    const cudnnTensorDescriptor_t xd, const cudnnTensorDescriptor_t yd,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t zd, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t bd, const cudnnActivationDescriptor_t activation, size_t* bytes) {
  return cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(handle, mode, operation, xd, zd, yd,
                                                                  bd, activation, bytes);
}
FAKE cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t operation,
    const cudnnActivationDescriptor_t activation, const cudnnTensorDescriptor_t xd, size_t* bytes) {
  if (operation != CUDNN_BATCHNORM_OPS_BN && !takes_fused(mode, as<Tensor>(xd), activation))
    return CUDNN_STATUS_NOT_SUPPORTED;
  *bytes = reserve_bytes(operation, as<Tensor>(xd));
  return CUDNN_STATUS_SUCCESS;
}
FAKE cudnnStatus_t cudnnDropoutGetStatesSize(cudnnHandle_t, size_t* n) {
  *n = 1024;
  return CUDNN_STATUS_SUCCESS;
}
FAKE cudnnStatus_t cudnnDropoutGetReserveSpaceSize(cudnnTensorDescriptor_t, size_t* n) {
  *n = 1024;
  return CUDNN_STATUS_SUCCESS;
}

// --- operations -------------------------------------------------------------------------------------
FAKE cudnnStatus_t cudnnConvolutionForward(
    cudnnHandle_t handle, const void* alpha, const cudnnTensorDescriptor_t xd, const void* x_place,
    const cudnnFilterDescriptor_t wd, const void* weights, const cudnnConvolutionDescriptor_t cd,
    cudnnConvolutionFwdAlgo_t algorithm, void* space, size_t space_bytes, const void* beta,
    const cudnnTensorDescriptor_t yd, void* y_place) {
  Call call("cudnnConvolutionForward", handle);
  const Data x = data(xd, x_place), y = data(yd, y_place);
  const Filter w = as<Filter>(wd);
  const Convolution c = as<Convolution>(cd);
  const Blend factors = blend(alpha, beta, x.tensor);
  call.tensor("input", x).moves("cudnnConvolutionForward", fake::met_bytes(x.tensor, w, c));
  call.reads("filter", {compute::as_tensor(w), weights}).writes("output", y, factors);
  check_convolution(call, x, w, weights, c, y, Direction::kForward, algorithm, space, space_bytes);
  return status(call.done(kind(x.tensor), [=] { compute::convolve(x, w, weights, c, factors, y); }));
}
FAKE cudnnStatus_t cudnnConvolutionBackwardData(
    cudnnHandle_t handle, const void* alpha, const cudnnFilterDescriptor_t wd, const void* weights,
    const cudnnTensorDescriptor_t dyd, const void* dy_place, const cudnnConvolutionDescriptor_t cd,
    cudnnConvolutionBwdDataAlgo_t algorithm, void* space, size_t space_bytes, const void* beta,
    const cudnnTensorDescriptor_t dxd, void* dx_place) {
  Call call("cudnnConvolutionBackwardData", handle);
  const Data dy = data(dyd, dy_place), dx = data(dxd, dx_place);
  const Filter w = as<Filter>(wd);
  const Convolution c = as<Convolution>(cd);
  const Blend factors = blend(alpha, beta, dx.tensor);
  call.reads("gradient out", dy).reads("filter", {compute::as_tensor(w), weights});
  call.writes("gradient in", dx, factors);
  check_convolution(call, dx, w, weights, c, dy, Direction::kBackwardData, algorithm, space, space_bytes);
  return status(call.done(kind(dx.tensor), [=] {
    compute::convolve_back_to_data(w, weights, dy, c, factors, dx);
  }));
}
FAKE cudnnStatus_t cudnnConvolutionBackwardFilter(
    cudnnHandle_t handle, const void* alpha, const cudnnTensorDescriptor_t xd, const void* x_place,
    const cudnnTensorDescriptor_t dyd, const void* dy_place, const cudnnConvolutionDescriptor_t cd,
    cudnnConvolutionBwdFilterAlgo_t algorithm, void* space, size_t space_bytes, const void* beta,
    const cudnnFilterDescriptor_t dwd, void* gradient) {
  Call call("cudnnConvolutionBackwardFilter", handle);
  const Data x = data(xd, x_place), dy = data(dyd, dy_place);
  const Filter w = as<Filter>(dwd);
  const Convolution c = as<Convolution>(cd);
  const Blend factors = blend(alpha, beta, x.tensor);
  call.tensor("input", x).moves("cudnnConvolutionBackwardFilter", fake::met_bytes(x.tensor, w, c));
  call.reads("gradient out", dy);
  call.writes("gradient", {compute::as_tensor(w), gradient}, factors);
  check_convolution(call, x, w, gradient, c, dy, Direction::kBackwardFilter, algorithm, space, space_bytes);
  return status(call.done(kind(x.tensor), [=] {
    compute::convolve_back_to_filter(x, dy, c, factors, w, gradient);
  }));
}
FAKE cudnnStatus_t cudnnConvolutionBackwardBias(cudnnHandle_t handle, const void* alpha,
                                                const cudnnTensorDescriptor_t dyd,
                                                const void* dy_place, const void* beta,
                                                const cudnnTensorDescriptor_t dbd, void* db_place) {
  Call call("cudnnConvolutionBackwardBias", handle);
  const Data dy = data(dyd, dy_place), db = data(dbd, db_place);
  const Blend factors = blend(alpha, beta, dy.tensor);
  call.same("channels", dy.tensor.size[1], db.tensor.size[1]);
  call.reads("gradient out", dy).writes("gradient", db, factors);
  return status(call.done(kind(dy.tensor), [=] { compute::sum_to_bias(dy, factors, db); }));
}
FAKE cudnnStatus_t cudnnAddTensor(cudnnHandle_t handle, const void* alpha,
                                  const cudnnTensorDescriptor_t ad, const void* a_place,
                                  const void* beta, const cudnnTensorDescriptor_t cd, void* c_place) {
  Call call("cudnnAddTensor", handle);
  const Data a = data(ad, a_place), c = data(cd, c_place);
  const Blend factors = blend(alpha, beta, c.tensor);
  call.same_type("types", a.tensor.type, c.tensor.type);
  for (int axis = 0; axis < a.tensor.n; ++axis)
    if (a.tensor.size[axis] != 1) call.same("sizes", a.tensor.size[axis], c.tensor.size[axis]);
  call.reads("addend", a).writes("sum", c, factors);
  return status(call.done(kind(c.tensor), [=] { compute::add(a, factors, c); }));
}

namespace {
void check_pooling(Call& call, const Pooling& p, const Tensor& x, const Tensor& y) {
  call.same_type("types of input and output", x.type, y.type)
      .same("dimensions of the pooling, 2 and its own", 2, p.n)
      .same("batches", x.size[0], y.size[0])
      .same("channels", x.size[1], y.size[1]);  // sides may be rounded up: windows end at the edge
  const bool largest = p.mode == CUDNN_POOLING_MAX || p.mode == CUDNN_POOLING_MAX_DETERMINISTIC;
  const bool whole = p.window[0] == x.size[2] && p.window[1] == x.size[3] && !p.pad[0] && !p.pad[1];
  if (largest || !whole) call.not_computed();
}
void check_same_sizes(Call& call, const Tensor& a, const Tensor& b) {
  call.same_type("types", a.type, b.type);
  for (int axis = 0; axis < a.n; ++axis) call.same("sizes", a.size[axis], b.size[axis]);
}
}  // namespace

FAKE cudnnStatus_t cudnnPoolingForward(cudnnHandle_t handle, const cudnnPoolingDescriptor_t pd,
                                       const void* alpha, const cudnnTensorDescriptor_t xd,
                                       const void* x_place, const void* beta,
                                       const cudnnTensorDescriptor_t yd, void* y_place) {
  Call call("cudnnPoolingForward", handle);
  const Data x = data(xd, x_place), y = data(yd, y_place);
  const Pooling p = as<Pooling>(pd);
  const Blend factors = blend(alpha, beta, x.tensor);
  check_pooling(call, p, x.tensor, y.tensor);
  call.reads("input", x).writes("output", y, factors);
  return status(call.done(kind(x.tensor), [=] { compute::average(x, factors, y); }));
}
FAKE cudnnStatus_t cudnnPoolingBackward(cudnnHandle_t handle, const cudnnPoolingDescriptor_t pd,
                                        const void* alpha, const cudnnTensorDescriptor_t yd,
                                        const void* y_place, const cudnnTensorDescriptor_t dyd,
                                        const void* dy_place, const cudnnTensorDescriptor_t xd,
                                        const void* x_place, const void* beta,
                                        const cudnnTensorDescriptor_t dxd, void* dx_place) {
  Call call("cudnnPoolingBackward", handle);
  const Data y = data(yd, y_place), dy = data(dyd, dy_place);
  const Data x = data(xd, x_place), dx = data(dxd, dx_place);
  const Pooling p = as<Pooling>(pd);
  const Blend factors = blend(alpha, beta, dx.tensor);
  check_pooling(call, p, dx.tensor, dy.tensor);
  check_same_sizes(call, y.tensor, dy.tensor);
  check_same_sizes(call, x.tensor, dx.tensor);
  call.reads("output", y).reads("gradient out", dy).reads("input", x);
  call.writes("gradient in", dx, factors);
  return status(call.done(kind(dx.tensor), [=] { compute::average_back(dy, factors, dx); }));
}
FAKE cudnnStatus_t cudnnActivationForward(cudnnHandle_t handle, cudnnActivationDescriptor_t,
                                          const void* alpha, const cudnnTensorDescriptor_t xd,
                                          const void* x_place, const void* beta,
                                          const cudnnTensorDescriptor_t yd, void* y_place) {
  Call call("cudnnActivationForward", handle);
  const Data x = data(xd, x_place), y = data(yd, y_place);
  check_same_sizes(call, x.tensor, y.tensor);
  call.reads("input", x).writes("output", y, blend(alpha, beta, x.tensor)).not_computed();
  return status(call.done(kind(x.tensor)));
}
FAKE cudnnStatus_t cudnnActivationBackward(
    cudnnHandle_t handle, cudnnActivationDescriptor_t, const void* alpha,
    const cudnnTensorDescriptor_t yd, const void* y_place, const cudnnTensorDescriptor_t dyd,
    const void* dy_place, const cudnnTensorDescriptor_t xd, const void* x_place, const void* beta,
    const cudnnTensorDescriptor_t dxd, void* dx_place) {
  Call call("cudnnActivationBackward", handle);
  const Data y = data(yd, y_place), dy = data(dyd, dy_place);
  const Data x = data(xd, x_place), dx = data(dxd, dx_place);
  for (const Data* each : {&y, &dy, &x}) check_same_sizes(call, each->tensor, dx.tensor);
  call.reads("output", y).reads("gradient out", dy).reads("input", x);
  call.writes("gradient in", dx, blend(alpha, beta, dx.tensor)).not_computed();
  return status(call.done(kind(dx.tensor)));
}
FAKE cudnnStatus_t cudnnSoftmaxForward(cudnnHandle_t handle, cudnnSoftmaxAlgorithm_t,
                                       cudnnSoftmaxMode_t, const void* alpha,
                                       const cudnnTensorDescriptor_t xd, const void* x_place,
                                       const void* beta, const cudnnTensorDescriptor_t yd,
                                       void* y_place) {
  Call call("cudnnSoftmaxForward", handle);
  const Data x = data(xd, x_place), y = data(yd, y_place);
  check_same_sizes(call, x.tensor, y.tensor);
  call.reads("input", x).writes("output", y, blend(alpha, beta, x.tensor)).not_computed();
  return status(call.done(kind(x.tensor)));
}
FAKE cudnnStatus_t cudnnBatchNormalizationForwardTraining(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void* alpha, const void* beta,
    const cudnnTensorDescriptor_t xd, const void* x, const cudnnTensorDescriptor_t yd, void* y,
    const cudnnTensorDescriptor_t bd, const void* scale, const void* bias, double factor, void* mean,
    void* variance, double epsilon, void* saved_mean, void* saved_deviation) {
  return forward(plain("cudnnBatchNormalizationForwardTraining", handle, mode),
                 blend(alpha, beta, as<Tensor>(xd)), data(xd, x), {}, data(yd, y), as<Tensor>(bd),
                 scale, bias, factor, mean, variance, epsilon, saved_mean, saved_deviation);
}
FAKE cudnnStatus_t cudnnBatchNormalizationForwardTrainingEx(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t operation,
    const void* alpha, const void* beta, const cudnnTensorDescriptor_t xd, const void* x,
    const cudnnTensorDescriptor_t zd, const void* z, const cudnnTensorDescriptor_t yd, void* y,
    const cudnnTensorDescriptor_t bd, const void* scale, const void* bias, double factor, void* mean,
    void* variance, double epsilon, void* saved_mean, void* saved_deviation,
    cudnnActivationDescriptor_t activation, void* space, size_t space_bytes, void* reserve,
    size_t reserve_bytes) {
  return forward({"cudnnBatchNormalizationForwardTrainingEx", handle, mode, operation, activation,
                  space, space_bytes, reserve, reserve_bytes},
                 blend(alpha, beta, as<Tensor>(xd)), data(xd, x), zd ? data(zd, z) : Data{},
                 data(yd, y), as<Tensor>(bd), scale, bias, factor, mean, variance, epsilon,
                 saved_mean, saved_deviation);
}
FAKE cudnnStatus_t cudnnBatchNormalizationForwardInference(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void* alpha, const void* beta,
    const cudnnTensorDescriptor_t xd, const void* x_place, const cudnnTensorDescriptor_t yd,
    void* y_place, const cudnnTensorDescriptor_t bd, const void* scale, const void* bias,
    const void* mean, const void* variance, double) {
  Call call("cudnnBatchNormalizationForwardInference", handle);
  const Data x = data(xd, x_place), y = data(yd, y_place);
  check_normalization(call, plain("", handle, mode), x, y, as<Tensor>(bd));
  call.reads("input", x).writes("output", y, blend(alpha, beta, x.tensor)).not_computed();
  for (const void* each : {scale, bias, mean, variance})
    call.tensor("a statistic or parameter", {as<Tensor>(bd), each});
  return status(call.done(kind(x.tensor)));
}
FAKE cudnnStatus_t cudnnBatchNormalizationBackward(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void* alpha, const void* beta,
    const void* alpha_parameters, const void* beta_parameters, const cudnnTensorDescriptor_t xd,
    const void* x, const cudnnTensorDescriptor_t dyd, const void* dy,
    const cudnnTensorDescriptor_t dxd, void* dx, const cudnnTensorDescriptor_t bd, const void* scale,
    void* d_scale, void* d_bias, double, const void* saved_mean, const void* saved_deviation) {
  const Tensor& t = as<Tensor>(xd);
  return backward(plain("cudnnBatchNormalizationBackward", handle, mode), blend(alpha, beta, t),
                  blend(alpha_parameters, beta_parameters, t), data(xd, x), data(dyd, dy), {},
                  data(dxd, dx), as<Tensor>(bd), scale, d_scale, d_bias, saved_mean, saved_deviation);
}
FAKE cudnnStatus_t cudnnBatchNormalizationBackwardEx(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t operation,
    const void* alpha, const void* beta, const void* alpha_parameters, const void* beta_parameters,
    const cudnnTensorDescriptor_t xd, const void* x, const cudnnTensorDescriptor_t yd, const void* y,
    const cudnnTensorDescriptor_t dyd, const void* dy, const cudnnTensorDescriptor_t dzd, void* dz,
    const cudnnTensorDescriptor_t dxd, void* dx, const cudnnTensorDescriptor_t bd, const void* scale,
    const void* bias, void* d_scale, void* d_bias, double, const void* saved_mean,
    const void* saved_deviation, cudnnActivationDescriptor_t activation, void* space,
    size_t space_bytes, void* reserve, size_t reserve_bytes) {
  constexpr const char* name = "cudnnBatchNormalizationBackwardEx";
  // With ReLU its documentation asks for these two as well; the kernels read the mask.
  if (operation != CUDNN_BATCHNORM_OPS_BN && (!yd || !fake::on_device(y) || !fake::on_device(bias)))
    return status(fake::refuse(CUDNN_STATUS_BAD_PARAM, std::string(name) + ": no output or no bias"));
  const Tensor& t = as<Tensor>(xd);
  return backward({name, handle, mode, operation, activation, space, space_bytes, reserve, reserve_bytes},
                  blend(alpha, beta, t), blend(alpha_parameters, beta_parameters, t), data(xd, x),
                  data(dyd, dy), dzd ? data(dzd, dz) : Data{}, data(dxd, dx), as<Tensor>(bd), scale,
                  d_scale, d_bias, saved_mean, saved_deviation);
}
FAKE cudnnStatus_t cudnnDropoutForward(cudnnHandle_t handle, const cudnnDropoutDescriptor_t,
                                       const cudnnTensorDescriptor_t xd, const void* x,
                                       const cudnnTensorDescriptor_t yd, void* y, void* space,
                                       size_t space_bytes) {
  Call call("cudnnDropoutForward", handle);
  call.reads("input", data(xd, x)).writes("output", data(yd, y));
  call.memory("reserve", space, space_bytes, "bytes").not_computed();
  return status(call.done(kind(as<Tensor>(xd))));
}
