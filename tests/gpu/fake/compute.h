// What the plan asks of cuDNN, on a CPU: plain loops over descriptors. Half precision is added up in
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
  int mode;
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
void normalize_back(const Data& x, const Data& dy, Blend of_data, Blend of_parameters,
                    const float* scale, float* d_scale, float* d_bias, const float* saved_mean,
                    const float* saved_inverse_deviation, const Fused& fused, const Data& dx);

// What cudnnBackendExecute has besides. `b`, of one element a channel or of all, is read where the mode
// takes two; of a ReLU's gradient x is the gradient and b what decides.
void pointwise(int mode, const Data& x, const Data& b, const Data& y);
void sum_channels(const Data& x, float* sum, float* squares);
// Batch norm's own gradients, and its data gradient as by_dy dy + by_x x + plus.
struct NormBack {
  const float *mean, *inverse_deviation, *scale;
  float *d_scale, *d_bias, *by_dy, *by_x, *plus;
};
void sum_norm_back(const Data& x, const Data& dy, const NormBack& norm);

// Means over whole maps.
void average(const Data& x, Blend blend, const Data& y);
void average_back(const Data& dy, Blend blend, const Data& dx);

}  // namespace compute
