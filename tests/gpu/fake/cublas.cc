// cuBLAS's products, column by column: a is m x k, b k x n, c m x n. None is computed.
#include "call.h"

#include <cublas_v2.h>
#include <cudnn.h>

#include <cstdlib>

using fake::Call;

namespace {

constexpr int kUnknown = -1;

struct Matrix {
  const void* place;
  int type, leading;  // type: cuDNN's
  bool transposed;
};

int tensor_type(int type) {  // cuDNN's number
  switch (type) {
    case CUDA_R_32F: return CUDNN_DATA_FLOAT;
    case CUDA_R_16F: return CUDNN_DATA_HALF;
    case CUDA_R_64F: return CUDNN_DATA_DOUBLE;
    default: return kUnknown;
  }
}

void check_matrix(Call& call, const char* name, const Matrix& matrix, long rows, long columns) {
  if (matrix.transposed) std::swap(rows, columns);
  if (matrix.type == kUnknown) call.wrong(std::string(name) + " of a type that is not computed");
  if (matrix.leading < rows) call.wrong(std::string(name) + ": its leading dimension is too short");
  const compute::Tensor t{matrix.type, 2, {int(columns), int(rows)}, {matrix.leading, 1}};
  call.reads(name, {t, matrix.place});
}

cublasStatus_t multiply(const char* name, cublasHandle_t handle, long m, long n, long k, float beta,
                        const Matrix& a, const Matrix& b, const Matrix& c) {
  Call call(name, handle);
  check_matrix(call, "a", a, m, k);
  check_matrix(call, "b", b, k, n);
  check_matrix(call, "c", c, m, n);
  if (beta != 0) call.moves(name, m * n * compute::type_bytes(c.type));
  call.same_type("types of its factors", a.type, b.type).not_computed();
  const int bad = call.done(std::string(fake::type_name(a.type)) + " NCHW");
  return bad ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
}

}  // namespace

FAKE cublasStatus_t cublasCreate_v2(cublasHandle_t* made) {
  auto* handle = static_cast<fake::Handle*>(std::calloc(1, 256));
  handle->device = fake::current_device();
  *made = reinterpret_cast<cublasHandle_t>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
FAKE cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  reinterpret_cast<fake::Handle*>(handle)->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}
FAKE cublasStatus_t cublasGetMathMode(cublasHandle_t, cublasMath_t* mode) {
  *mode = CUBLAS_DEFAULT_MATH;
  return CUBLAS_STATUS_SUCCESS;
}
FAKE cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb,
                                   int m, int n, int k, const float*, const float* a, int lda,
                                   const float* b, int ldb, const float* beta, float* c, int ldc) {
  return multiply("cublasSgemm", handle, m, n, k, *beta,
                  {a, CUDNN_DATA_FLOAT, lda, ta != CUBLAS_OP_N},
                  {b, CUDNN_DATA_FLOAT, ldb, tb != CUBLAS_OP_N}, {c, CUDNN_DATA_FLOAT, ldc, false});
}
FAKE cublasStatus_t cublasSgemmEx(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb,
                                  int m, int n, int k, const float*, const void* a,
                                  cudaDataType a_type, int lda, const void* b, cudaDataType b_type,
                                  int ldb, const float* beta, void* c, cudaDataType c_type, int ldc) {
  return multiply("cublasSgemmEx", handle, m, n, k, *beta,
                  {a, tensor_type(a_type), lda, ta != CUBLAS_OP_N},
                  {b, tensor_type(b_type), ldb, tb != CUBLAS_OP_N},
                  {c, tensor_type(c_type), ldc, false});
}
FAKE cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb,
                                 int m, int n, int k, const void*, const void* a,
                                 cudaDataType a_type, int lda, const void* b, cudaDataType b_type,
                                 int ldb, const void* beta, void* c, cudaDataType c_type, int ldc,
                                 cublasComputeType_t compute_type, cublasGemmAlgo_t) {
  if (compute_type == CUBLAS_COMPUTE_16F || compute_type == CUBLAS_COMPUTE_16F_PEDANTIC)
    return static_cast<cublasStatus_t>(
        fake::refuse(CUBLAS_STATUS_NOT_SUPPORTED, "cublasGemmEx: sums in float16, float32 expected"));
  return multiply("cublasGemmEx", handle, m, n, k, *static_cast<const float*>(beta),
                  {a, tensor_type(a_type), lda, ta != CUBLAS_OP_N},
                  {b, tensor_type(b_type), ldb, tb != CUBLAS_OP_N},
                  {c, tensor_type(c_type), ldc, false});
}
