// cuDNN and cuBLAS: descriptors are kept, and every call is held against them: types, shapes, layouts,
// and that each tensor lies on the device whole. Nothing is computed.
#include "fake.h"

#include <cublas_v2.h>
#include <cudnn.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace {

struct Tensor {
  int type, n, size[8], stride[8];
};
struct Filter {
  int type, format, n, size[8];
};
struct Convolution {
  int n, pad[6], stride[6], dilation[6], compute_type, math_type, groups;
};
struct Pooling {
  int n, mode, window[6], pad[6], stride[6];
};

// Descriptors of kinds that are only made and set: large enough for any of the above.
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

const char* type_name(int type) {
  switch (type) {
    case CUDNN_DATA_FLOAT: return "float32";
    case CUDNN_DATA_DOUBLE: return "float64";
    case CUDNN_DATA_HALF: return "float16";
    default: return "other";
  }
}
std::size_t type_bytes(int type) {
  return type == CUDNN_DATA_HALF ? 2 : type == CUDNN_DATA_DOUBLE ? 8 : 4;
}
std::size_t extent_bytes(const Tensor& t) {  // from its first to its last element
  std::size_t last = 0;
  for (int i = 0; i < t.n; ++i) last += std::size_t(t.size[i] - 1) * t.stride[i];
  return (last + 1) * type_bytes(t.type);
}
const char* layout(const Tensor& t) {
  return t.n == 4 && t.stride[1] == 1 && t.size[1] > 1 && t.size[2] * t.size[3] > 1 ? "NHWC" : "NCHW";
}
std::string shape(const int* size, int n) {
  std::string text;
  for (int i = 0; i < n; ++i) text += (i ? "x" : "") + std::to_string(size[i]);
  return text;
}

// A call under test: collects what is wrong with it and counts it by type and layout.
class Call {
 public:
  explicit Call(const char* name) : name_(name) {}
  Call& tensor(const char* what, const Tensor& t, const void* data) {
    if (t.n == 0) return wrong(std::string(what) + ": its descriptor was never set");
    return memory(what, data, extent_bytes(t), shape(t.size, t.n) + " " + type_name(t.type));
  }
  Call& filter(const char* what, const Filter& f, const void* data) {
    std::size_t bytes = type_bytes(f.type);
    for (int i = 0; i < f.n; ++i) bytes *= f.size[i];
    return memory(what, data, bytes, shape(f.size, f.n) + " " + type_name(f.type));
  }
  Call& memory(const char* what, const void* data, std::size_t bytes, const std::string& of) {
    if (bytes == 0 || fake::on_device(data, bytes)) return *this;
    return wrong(std::string(what) + " (" + of + ", " + std::to_string(bytes) + " bytes) " +
                 (fake::in_device_range(data) ? "passes the end of its allocation"
                                              : "is not on the device"));
  }
  Call& same(const char* what, int a, int b) {
    if (a != b) wrong(std::string(what) + " differ: " + std::to_string(a) + ", " + std::to_string(b));
    return *this;
  }
  Call& same_type(const char* what, int a, int b) {
    if (a != b) wrong(std::string(what) + " differ: " + type_name(a) + ", " + type_name(b));
    return *this;
  }
  Call& wrong(const std::string& why) {
    refused_ = true;
    fake::refuse(0, name_ + ": " + why);
    return *this;
  }
  cudnnStatus_t done(const Tensor& t) {
    fake::count(name_ + " " + type_name(t.type) + " " + layout(t));
    return refused_ ? CUDNN_STATUS_BAD_PARAM : CUDNN_STATUS_SUCCESS;
  }

 private:
  std::string name_;
  bool refused_ = false;
};

void check_convolution(Call& call, const Tensor& x, const Filter& w, const Convolution& c,
                       const Tensor& y) {
  call.same_type("types of input and filter", x.type, w.type)
      .same_type("types of input and output", x.type, y.type)
      .same("channels of input and filter", x.size[1], w.size[1] * (c.groups ? c.groups : 1))
      .same("channels of output and filters", y.size[1], w.size[0])
      .same("batches of input and output", x.size[0], y.size[0]);
  for (int i = 0; i < c.n; ++i) {
    const int reach = c.dilation[i] * (w.size[2 + i] - 1) + 1;
    call.same("output sides, given and by the formula", y.size[2 + i],
              (x.size[2 + i] + 2 * c.pad[i] - reach) / c.stride[i] + 1);
  }
  const bool last = std::strcmp(layout(x), "NHWC") == 0;
  if (last != (w.format == CUDNN_TENSOR_NHWC) && x.size[1] > 1 && x.size[2] * x.size[3] > 1)
    call.wrong(std::string("input is ") + layout(x) + ", its filter is not");
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

FAKE cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) { return make(handle); }
FAKE size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
FAKE const char* cudnnGetErrorString(cudnnStatus_t) {
  return "an error of the fake cuDNN, see its line on stderr";
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
                                                   const int* dilation, cudnnConvolutionMode_t,
                                                   cudnnDataType_t compute_type) {
  Convolution& c = as_new<Convolution>(d);
  c.n = n, c.compute_type = compute_type;
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
FAKE cudnnStatus_t cudnnDeriveBNTensorDescriptor(cudnnTensorDescriptor_t derived,
                                                 const cudnnTensorDescriptor_t x,
                                                 cudnnBatchNormMode_t) {
  const Tensor& t = as<Tensor>(x);
  return cudnnSetTensor4dDescriptor(
      derived, CUDNN_TENSOR_NCHW,
      t.type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT, 1, t.size[1], 1, 1);
}

// --- algorithms: one each, on tensor cores ----------------------------------------------------------
#define COUNT(kind)                                                                    \
  FAKE cudnnStatus_t cudnnGetConvolution##kind##AlgorithmMaxCount(cudnnHandle_t, int* n) { \
    *n = 8;                                                                            \
    return CUDNN_STATUS_SUCCESS;                                                       \
  }
COUNT(Forward) COUNT(BackwardData) COUNT(BackwardFilter)
#define PICK_BY(name, Perf, A, B, C, D)                                                           \
  FAKE cudnnStatus_t name(cudnnHandle_t, const A, const B, const C, const D, int, int* found,     \
                          Perf* p) {                                                              \
    *found = 1;                                                                                   \
    std::memset(p, 0, sizeof *p);                                                                 \
    p->algo = static_cast<decltype(p->algo)>(1);                                                  \
    p->time = 1;                                                                                  \
    p->determinism = CUDNN_DETERMINISTIC;                                                         \
    p->mathType = CUDNN_TENSOR_OP_MATH;                                                           \
    return CUDNN_STATUS_SUCCESS;                                                                  \
  }
#define PICK(kind, Perf, A, B, C, D)                                             \
  PICK_BY(cudnnGetConvolution##kind##Algorithm_v7, Perf, A, B, C, D)             \
  PICK_BY(cudnnFindConvolution##kind##Algorithm, Perf, A, B, C, D)
PICK(Forward, cudnnConvolutionFwdAlgoPerf_t, cudnnTensorDescriptor_t, cudnnFilterDescriptor_t,
     cudnnConvolutionDescriptor_t, cudnnTensorDescriptor_t)
PICK(BackwardData, cudnnConvolutionBwdDataAlgoPerf_t, cudnnFilterDescriptor_t,
     cudnnTensorDescriptor_t, cudnnConvolutionDescriptor_t, cudnnTensorDescriptor_t)
PICK(BackwardFilter, cudnnConvolutionBwdFilterAlgoPerf_t, cudnnTensorDescriptor_t,
     cudnnTensorDescriptor_t, cudnnConvolutionDescriptor_t, cudnnFilterDescriptor_t)
#define WORKSPACE(kind, Algo, A, B, C, D)                                                          \
  FAKE cudnnStatus_t cudnnGetConvolution##kind##WorkspaceSize(cudnnHandle_t, const A, const B,    \
                                                              const C, const D, Algo, size_t* n) { \
    *n = 1024;                                                                                    \
    return CUDNN_STATUS_SUCCESS;                                                                  \
  }
WORKSPACE(Forward, cudnnConvolutionFwdAlgo_t, cudnnTensorDescriptor_t, cudnnFilterDescriptor_t,
          cudnnConvolutionDescriptor_t, cudnnTensorDescriptor_t)
WORKSPACE(BackwardData, cudnnConvolutionBwdDataAlgo_t, cudnnFilterDescriptor_t,
          cudnnTensorDescriptor_t, cudnnConvolutionDescriptor_t, cudnnTensorDescriptor_t)
WORKSPACE(BackwardFilter, cudnnConvolutionBwdFilterAlgo_t, cudnnTensorDescriptor_t,
          cudnnTensorDescriptor_t, cudnnConvolutionDescriptor_t, cudnnFilterDescriptor_t)
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
    cudnnHandle_t, const void*, const cudnnTensorDescriptor_t xd, const void* x,
    const cudnnFilterDescriptor_t wd, const void* w, const cudnnConvolutionDescriptor_t cd,
    cudnnConvolutionFwdAlgo_t, void* space, size_t space_bytes, const void*,
    const cudnnTensorDescriptor_t yd, void* y) {
  Call call("cudnnConvolutionForward");
  check_convolution(call, as<Tensor>(xd), as<Filter>(wd), as<Convolution>(cd), as<Tensor>(yd));
  call.tensor("input", as<Tensor>(xd), x).tensor("output", as<Tensor>(yd), y);
  call.filter("filter", as<Filter>(wd), w).memory("workspace", space, space_bytes, "bytes");
  return call.done(as<Tensor>(xd));
}
FAKE cudnnStatus_t cudnnConvolutionBackwardData(
    cudnnHandle_t, const void*, const cudnnFilterDescriptor_t wd, const void* w,
    const cudnnTensorDescriptor_t dyd, const void* dy, const cudnnConvolutionDescriptor_t cd,
    cudnnConvolutionBwdDataAlgo_t, void* space, size_t space_bytes, const void*,
    const cudnnTensorDescriptor_t dxd, void* dx) {
  Call call("cudnnConvolutionBackwardData");
  check_convolution(call, as<Tensor>(dxd), as<Filter>(wd), as<Convolution>(cd), as<Tensor>(dyd));
  call.tensor("gradient out", as<Tensor>(dyd), dy).tensor("gradient in", as<Tensor>(dxd), dx);
  call.filter("filter", as<Filter>(wd), w).memory("workspace", space, space_bytes, "bytes");
  return call.done(as<Tensor>(dxd));
}
FAKE cudnnStatus_t cudnnConvolutionBackwardFilter(
    cudnnHandle_t, const void*, const cudnnTensorDescriptor_t xd, const void* x,
    const cudnnTensorDescriptor_t dyd, const void* dy, const cudnnConvolutionDescriptor_t cd,
    cudnnConvolutionBwdFilterAlgo_t, void* space, size_t space_bytes, const void*,
    const cudnnFilterDescriptor_t dwd, void* dw) {
  Call call("cudnnConvolutionBackwardFilter");
  check_convolution(call, as<Tensor>(xd), as<Filter>(dwd), as<Convolution>(cd), as<Tensor>(dyd));
  call.tensor("input", as<Tensor>(xd), x).tensor("gradient out", as<Tensor>(dyd), dy);
  call.filter("gradient", as<Filter>(dwd), dw).memory("workspace", space, space_bytes, "bytes");
  return call.done(as<Tensor>(xd));
}
FAKE cudnnStatus_t cudnnConvolutionBackwardBias(cudnnHandle_t, const void*,
                                                const cudnnTensorDescriptor_t dyd, const void* dy,
                                                const void*, const cudnnTensorDescriptor_t dbd,
                                                void* db) {
  Call call("cudnnConvolutionBackwardBias");
  call.tensor("gradient out", as<Tensor>(dyd), dy).tensor("gradient", as<Tensor>(dbd), db);
  return call.done(as<Tensor>(dyd));
}
FAKE cudnnStatus_t cudnnAddTensor(cudnnHandle_t, const void*, const cudnnTensorDescriptor_t ad,
                                  const void* a, const void*, const cudnnTensorDescriptor_t cd,
                                  void* c) {
  Call call("cudnnAddTensor");
  call.same_type("types", as<Tensor>(ad).type, as<Tensor>(cd).type);
  call.tensor("addend", as<Tensor>(ad), a).tensor("sum", as<Tensor>(cd), c);
  return call.done(as<Tensor>(cd));
}
FAKE cudnnStatus_t cudnnPoolingForward(cudnnHandle_t, const cudnnPoolingDescriptor_t, const void*,
                                       const cudnnTensorDescriptor_t xd, const void* x, const void*,
                                       const cudnnTensorDescriptor_t yd, void* y) {
  Call call("cudnnPoolingForward");
  call.same_type("types of input and output", as<Tensor>(xd).type, as<Tensor>(yd).type);
  call.same("channels", as<Tensor>(xd).size[1], as<Tensor>(yd).size[1]);
  call.tensor("input", as<Tensor>(xd), x).tensor("output", as<Tensor>(yd), y);
  return call.done(as<Tensor>(xd));
}
FAKE cudnnStatus_t cudnnPoolingBackward(cudnnHandle_t, const cudnnPoolingDescriptor_t, const void*,
                                        const cudnnTensorDescriptor_t yd, const void* y,
                                        const cudnnTensorDescriptor_t dyd, const void* dy,
                                        const cudnnTensorDescriptor_t xd, const void* x, const void*,
                                        const cudnnTensorDescriptor_t dxd, void* dx) {
  Call call("cudnnPoolingBackward");
  call.tensor("output", as<Tensor>(yd), y).tensor("gradient out", as<Tensor>(dyd), dy);
  call.tensor("input", as<Tensor>(xd), x).tensor("gradient in", as<Tensor>(dxd), dx);
  return call.done(as<Tensor>(xd));
}
FAKE cudnnStatus_t cudnnActivationForward(cudnnHandle_t, cudnnActivationDescriptor_t, const void*,
                                          const cudnnTensorDescriptor_t xd, const void* x,
                                          const void*, const cudnnTensorDescriptor_t yd, void* y) {
  Call call("cudnnActivationForward");
  call.tensor("input", as<Tensor>(xd), x).tensor("output", as<Tensor>(yd), y);
  return call.done(as<Tensor>(xd));
}
FAKE cudnnStatus_t cudnnActivationBackward(cudnnHandle_t, cudnnActivationDescriptor_t, const void*,
                                           const cudnnTensorDescriptor_t yd, const void* y,
                                           const cudnnTensorDescriptor_t dyd, const void* dy,
                                           const cudnnTensorDescriptor_t xd, const void* x,
                                           const void*, const cudnnTensorDescriptor_t dxd,
                                           void* dx) {
  Call call("cudnnActivationBackward");
  call.tensor("output", as<Tensor>(yd), y).tensor("gradient out", as<Tensor>(dyd), dy);
  call.tensor("input", as<Tensor>(xd), x).tensor("gradient in", as<Tensor>(dxd), dx);
  return call.done(as<Tensor>(xd));
}
FAKE cudnnStatus_t cudnnBatchNormalizationForwardTraining(
    cudnnHandle_t, cudnnBatchNormMode_t, const void*, const void*, const cudnnTensorDescriptor_t xd,
    const void* x, const cudnnTensorDescriptor_t yd, void* y, const cudnnTensorDescriptor_t bd,
    const void* scale, const void* bias, double, void* mean, void* variance, double,
    void* saved_mean, void* saved_scale) {
  Call call("cudnnBatchNormalizationForwardTraining");
  call.tensor("input", as<Tensor>(xd), x).tensor("output", as<Tensor>(yd), y);
  const void* const all[] = {scale, bias, mean, variance, saved_mean, saved_scale};
  for (const void* data : all) call.tensor("a statistic or parameter", as<Tensor>(bd), data);
  return call.done(as<Tensor>(xd));
}
FAKE cudnnStatus_t cudnnBatchNormalizationForwardInference(
    cudnnHandle_t, cudnnBatchNormMode_t, const void*, const void*, const cudnnTensorDescriptor_t xd,
    const void* x, const cudnnTensorDescriptor_t yd, void* y, const cudnnTensorDescriptor_t bd,
    const void* scale, const void* bias, const void* mean, const void* variance, double) {
  Call call("cudnnBatchNormalizationForwardInference");
  call.tensor("input", as<Tensor>(xd), x).tensor("output", as<Tensor>(yd), y);
  const void* const all[] = {scale, bias, mean, variance};
  for (const void* data : all) call.tensor("a statistic or parameter", as<Tensor>(bd), data);
  return call.done(as<Tensor>(xd));
}
FAKE cudnnStatus_t cudnnBatchNormalizationBackward(
    cudnnHandle_t, cudnnBatchNormMode_t, const void*, const void*, const void*, const void*,
    const cudnnTensorDescriptor_t xd, const void* x, const cudnnTensorDescriptor_t dyd,
    const void* dy, const cudnnTensorDescriptor_t dxd, void* dx, const cudnnTensorDescriptor_t bd,
    const void* scale, void* d_scale, void* d_bias, double, const void* saved_mean,
    const void* saved_scale) {
  Call call("cudnnBatchNormalizationBackward");
  call.tensor("input", as<Tensor>(xd), x).tensor("gradient out", as<Tensor>(dyd), dy);
  call.tensor("gradient in", as<Tensor>(dxd), dx);
  const void* const all[] = {scale, d_scale, d_bias, saved_mean, saved_scale};
  for (const void* data : all) call.tensor("a statistic or gradient", as<Tensor>(bd), data);
  return call.done(as<Tensor>(xd));
}
FAKE cudnnStatus_t cudnnDropoutForward(cudnnHandle_t, const cudnnDropoutDescriptor_t,
                                       const cudnnTensorDescriptor_t xd, const void* x,
                                       const cudnnTensorDescriptor_t yd, void* y, void* space,
                                       size_t space_bytes) {
  Call call("cudnnDropoutForward");
  call.tensor("input", as<Tensor>(xd), x).tensor("output", as<Tensor>(yd), y);
  call.memory("reserve", space, space_bytes, "bytes");
  return call.done(as<Tensor>(xd));
}

// --- cuBLAS, column by column: a is m x k, b k x n, c m x n -------------------------------------------
namespace {

std::size_t element_bytes(int type) { return type == CUDA_R_16F ? 2 : type == CUDA_R_64F ? 8 : 4; }

cublasStatus_t gemm(const char* name, bool ta, bool tb, int m, int n, int k, const void* a, int a_type,
                    int lda, const void* b, int b_type, int ldb, const void* c, int c_type, int ldc) {
  Call call(name);
  const std::size_t a_columns = ta ? m : k, b_columns = tb ? k : n;
  if (lda < (ta ? k : m) || ldb < (tb ? n : k) || ldc < m)
    call.wrong("a leading dimension shorter than its columns");
  if (a_type != b_type) call.wrong("its factors differ in type");
  const std::size_t a_rows = ta ? k : m, b_rows = tb ? n : k;
  call.memory("a", a, ((a_columns - 1) * lda + a_rows) * element_bytes(a_type), "matrix")
      .memory("b", b, ((b_columns - 1) * ldb + b_rows) * element_bytes(b_type), "matrix")
      .memory("c", c, (std::size_t(n - 1) * ldc + m) * element_bytes(c_type), "matrix");
  const Tensor t{a_type == CUDA_R_16F ? CUDNN_DATA_HALF : CUDNN_DATA_FLOAT, 0, {}, {}};
  return call.done(t) == CUDNN_STATUS_SUCCESS ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

}  // namespace

FAKE cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  *handle = static_cast<cublasHandle_t>(std::calloc(1, 256));
  return CUBLAS_STATUS_SUCCESS;
}
FAKE cublasStatus_t cublasGetMathMode(cublasHandle_t, cublasMath_t* mode) {
  *mode = CUBLAS_DEFAULT_MATH;
  return CUBLAS_STATUS_SUCCESS;
}
FAKE cublasStatus_t cublasSgemm_v2(cublasHandle_t, cublasOperation_t ta, cublasOperation_t tb, int m,
                                   int n, int k, const float*, const float* a, int lda,
                                   const float* b, int ldb, const float*, float* c, int ldc) {
  return gemm("cublasSgemm", ta, tb, m, n, k, a, CUDA_R_32F, lda, b, CUDA_R_32F, ldb, c, CUDA_R_32F,
              ldc);
}
FAKE cublasStatus_t cublasSgemmEx(cublasHandle_t, cublasOperation_t ta, cublasOperation_t tb, int m,
                                  int n, int k, const float*, const void* a, cudaDataType a_type,
                                  int lda, const void* b, cudaDataType b_type, int ldb, const float*,
                                  void* c, cudaDataType c_type, int ldc) {
  return gemm("cublasSgemmEx", ta, tb, m, n, k, a, a_type, lda, b, b_type, ldb, c, c_type, ldc);
}
FAKE cublasStatus_t cublasGemmEx(cublasHandle_t, cublasOperation_t ta, cublasOperation_t tb, int m,
                                 int n, int k, const void*, const void* a, cudaDataType a_type,
                                 int lda, const void* b, cudaDataType b_type, int ldb, const void*,
                                 void* c, cudaDataType c_type, int ldc, cublasComputeType_t,
                                 cublasGemmAlgo_t) {
  return gemm("cublasGemmEx", ta, tb, m, n, k, a, a_type, lda, b, b_type, ldb, c, c_type, ldc);
}
