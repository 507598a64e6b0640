// What cuDNN and cuBLAS compute, on a CPU: plain loops over descriptors. Half precision is added up in
// float, as tensor cores do.
#pragma once
#include <cstddef>
#include <cstdint>

namespace compute {

struct Tensor {
  int type, n, size[8], stride[8];
};
struct Filter {
  int type, format, n, size[8];
};
struct Convolution {
  int n, pad[6], stride[6], dilation[6], compute_type, math_type, groups, mode;
};
struct Pooling {
  int n, mode, window[6], pad[6], stride[6];
};
struct Activation {
  int mode, nan;
};

// What a call leaves: alpha times what it computes, plus beta times what was there.
struct Blend {
  float alpha, beta;
};

// A tensor and where it lies.
struct Data {
  Tensor tensor;
  const void* place;
};

std::size_t type_bytes(int type);
long elements(const Tensor& t);
Tensor as_tensor(const Filter& f);  // with the strides of its format

void convolve(const Data& x, const Filter& w, const void* weights, const Convolution& c, Blend blend,
              const Data& y);
void convolve_back_to_data(const Filter& w, const void* weights, const Data& dy, const Convolution& c,
                           Blend blend, const Data& dx);
void convolve_back_to_filter(const Data& x, const Data& dy, const Convolution& c, Blend blend,
                             const Filter& w, void* gradient);
void sum_to_bias(const Data& dy, Blend blend, const Data& db);
void add(const Data& addend, Blend blend, const Data& sum);

// Of batch norm: null where there is none.
struct Statistics {
  float* running_mean;
  float* running_variance;
  float* saved_mean;
  float* saved_inverse_deviation;
};
// With ReLU: `mask` gets a bit for each element, in the order N, H, W, C.
struct Fused {
  bool relu;
  Data z;  // its place null: none
  unsigned char* mask;
};
void normalize_batch(const Data& x, Blend blend, const float* scale, const float* bias, double factor,
                     double epsilon, const Statistics& statistics, const Fused& fused, const Data& y);
void normalize_by_running(const Data& x, Blend blend, const float* scale, const float* bias,
                          const float* mean, const float* variance, double epsilon, const Data& y);
void normalize_back(const Data& x, const Data& dy, Blend of_data, Blend of_parameters,
                    const float* scale, float* d_scale, float* d_bias, double epsilon,
                    const float* saved_mean, const float* saved_inverse_deviation,
                    const Fused& fused, const Data& dx);

void pool(const Pooling& p, const Data& x, Blend blend, const Data& y);
void pool_back(const Pooling& p, const Data& y, const Data& dy, const Data& x, Blend blend,
               const Data& dx);
void rectify(const Activation& a, const Data& x, Blend blend, const Data& y);
void rectify_back(const Data& y, const Data& dy, Blend blend, const Data& dx);
void softmax(bool of_logarithm, bool by_channel, const Data& x, Blend blend, const Data& y);

// A matrix as cuBLAS has it, column by column; `type` is cuDNN's.
struct Matrix {
  const void* place;
  int type, leading;
  bool transposed;
};
void multiply(long m, long n, long k, Blend blend, const Matrix& a, const Matrix& b, const Matrix& c);

}  // namespace compute
