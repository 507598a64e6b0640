// What cuDNN computes: see compute.h.
#include "compute.h"

#include <cudnn.h>
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace compute {
namespace {

// Values of a tensor in the order N, H, W, C, without gaps.
using Values = std::vector<float>;

float load(const std::uint16_t& half) { return _cvtsh_ss(half); }
float load(const float& value) { return value; }
float load(const double& value) { return float(value); }
void save(std::uint16_t& to, float value) { to = std::uint16_t(_cvtss_sh(value, 0)); }
void save(float& to, float value) { to = value; }
void save(double& to, float value) { to = value; }

template <class Visit>
void by_type(int type, const void* place, Visit visit) {
  void* at = const_cast<void*>(place);
  switch (type) {
    case CUDNN_DATA_HALF: return visit(static_cast<std::uint16_t*>(at));
    case CUDNN_DATA_DOUBLE: return visit(static_cast<double*>(at));
    default: return visit(static_cast<float*>(at));
  }
}

struct Shape {
  long n, c, h, w;
  explicit Shape(const Tensor& t) : n(at(t, 0)), c(at(t, 1)), h(at(t, 2)), w(at(t, 3)) {}
  static long at(const Tensor& t, int axis) { return axis < t.n ? t.size[axis] : 1; }
  long rows() const { return n * h * w; }
};

// visit(place in Values, offset in memory) of each element; the inner loop is the one in memory.
template <class Visit>
void each(const Tensor& t, Visit visit) {
  const Shape s(t);
  auto stride = [&](int axis) { return axis < t.n ? long(t.stride[axis]) : 0; };
  const long of_n = stride(0), of_c = stride(1), of_h = stride(2), of_w = stride(3);
  for (long n = 0; n < s.n; ++n)
    for (long h = 0; h < s.h; ++h) {
      const long place = (n * s.h + h) * s.w * s.c, offset = n * of_n + h * of_h;
      if (of_c == 1)
        for (long w = 0; w < s.w; ++w)
          for (long c = 0; c < s.c; ++c) visit(place + w * s.c + c, offset + w * of_w + c);
      else
        for (long c = 0; c < s.c; ++c)
          for (long w = 0; w < s.w; ++w) visit(place + w * s.c + c, offset + w * of_w + c * of_c);
    }
}

Values values_of(const Data& data) {
  Values values(elements(data.tensor));
  by_type(data.tensor.type, data.place, [&](auto* memory) {
    each(data.tensor, [&](long place, long offset) { values[place] = load(memory[offset]); });
  });
  return values;
}

// What was there is read only where it counts: it may be no number.
void put(const Data& to, const Values& values, Blend blend) {
  by_type(to.tensor.type, to.place, [&](auto* memory) {
    each(to.tensor, [&](long place, long offset) {
      float value = blend.alpha * values[place];
      if (blend.beta != 0) value += blend.beta * load(memory[offset]);
      save(memory[offset], value);
    });
  });
}

void put(float* to, const std::vector<double>& values, Blend blend) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float before = blend.beta != 0 ? blend.beta * to[i] : 0;
    to[i] = float(blend.alpha * values[i]) + before;
  }
}

// --- products, row by row ---------------------------------------------------------------------------
constexpr int kRows = 6, kColumns = 16;
constexpr long kDepth = 384, kWidth = 512;  // of a block of b, which stays in the cache

typedef float Lanes __attribute__((vector_size(32), aligned(4)));

// to (6 x 16) = a (depth x 6, packed)^T b (depth x 16, packed)
void tile(long depth, const float* a, const float* b, float* to) {
  Lanes sums[kRows][2] = {};
  for (long i = 0; i < depth; ++i) {
    const Lanes left = *reinterpret_cast<const Lanes*>(b);
    const Lanes right = *reinterpret_cast<const Lanes*>(b + 8);
#pragma GCC unroll 6
    for (int row = 0; row < kRows; ++row) {
      sums[row][0] += a[row] * left;
      sums[row][1] += a[row] * right;
    }
    a += kRows;
    b += kColumns;
  }
  std::memcpy(to, sums, sizeof sums);
}

struct Operand {
  const float* values;
  long leading;
  bool transposed;
  const float& at(long row, long column) const {
    return transposed ? values[column * leading + row] : values[row * leading + column];
  }
};

// c (m x n) += a (m x k) b (k x n)
void add_product(long m, long n, long k, const Operand& a, const Operand& b, float* c, long leading) {
  Values packed_a(kRows * kDepth), packed_b(kWidth * kDepth);
  float found[kRows * kColumns];
  for (long first_k = 0; first_k < k; first_k += kDepth)
    for (long first_n = 0; first_n < n; first_n += kWidth) {
      const long depth = std::min(kDepth, k - first_k), width = std::min(kWidth, n - first_n);
      const long panels = (width + kColumns - 1) / kColumns;
      for (long panel = 0; panel < panels; ++panel)
        for (int column = 0; column < kColumns; ++column) {
          const long from = panel * kColumns + column;
          float* to = packed_b.data() + panel * kColumns * depth + column;
          for (long i = 0; i < depth; ++i)
            to[i * kColumns] = from < width ? b.at(first_k + i, first_n + from) : 0;
        }
      for (long first_m = 0; first_m < m; first_m += kRows) {
        const long height = std::min<long>(kRows, m - first_m);
        for (long row = 0; row < kRows; ++row)
          for (long i = 0; i < depth; ++i)
            packed_a[i * kRows + row] = row < height ? a.at(first_m + row, first_k + i) : 0;
        for (long panel = 0; panel < panels; ++panel) {
          tile(depth, packed_a.data(), packed_b.data() + panel * kColumns * depth, found);
          const long columns = std::min<long>(kColumns, width - panel * kColumns);
          for (long row = 0; row < height; ++row) {
            float* to = c + (first_m + row) * leading + first_n + panel * kColumns;
            for (long column = 0; column < columns; ++column) to[column] += found[row * kColumns + column];
          }
        }
      }
    }
}

// --- convolution as a product -----------------------------------------------------------------------
constexpr long kLargestPatches = 8 << 20;  // elements of the patches of the images taken together

// The places of x that a filter covers, a row an output pixel: R x S x C.
struct Patches {
  Shape x, y;
  long r, s, channels, filters;
  const Convolution& c;

  Patches(const Tensor& in, const Filter& w, const Convolution& convolution, const Tensor& out)
      : x(in), y(out), r(w.size[2]), s(w.size[3]), channels(w.size[1]), filters(w.size[0]),
        c(convolution) {}

  long length() const { return r * s * channels; }
  long image_rows() const { return y.h * y.w; }
  long together() const { return std::max(1L, kLargestPatches / (image_rows() * length())); }

  // visit(patch element, x's) of each run of channels; x's is -1 in the padding.
  template <class Visit>
  void each(long first_image, long images, Visit visit) const {
    long to = 0;
    for (long n = first_image; n < first_image + images; ++n)
      for (long p = 0; p < y.h; ++p)
        for (long q = 0; q < y.w; ++q)
          for (long i = 0; i < r; ++i)
            for (long j = 0; j < s; ++j) {
              const long h = p * c.stride[0] - c.pad[0] + i;
              const long w = q * c.stride[1] - c.pad[1] + j;
              const bool inside = h >= 0 && h < x.h && w >= 0 && w < x.w;
              visit(to, inside ? ((n * x.h + h) * x.w + w) * channels : -1);
              to += channels;
            }
  }
  Values gather(const Values& from, long first_image, long images) const {
    Values patches(images * image_rows() * length());
    each(first_image, images, [&](long to, long at) {
      if (at >= 0) std::copy_n(from.data() + at, channels, patches.data() + to);
    });
    return patches;
  }
  void scatter(const Values& patches, long first_image, long images, Values& to) const {
    each(first_image, images, [&](long from, long at) {
      if (at < 0) return;
      for (long channel = 0; channel < channels; ++channel) to[at + channel] += patches[from + channel];
    });
  }
  // visit(first image, images, first element of y)
  template <class Visit>
  void each_part(Visit visit) const {
    for (long first = 0; first < x.n; first += together())
      visit(first, std::min(together(), x.n - first), first * image_rows() * filters);
  }
};

// The mean over a map to which an element belongs.
long mean_of(std::size_t place, const Shape& s) {
  return long(place) / (s.h * s.w * s.c) * s.c + long(place) % s.c;
}

struct Moments {
  std::vector<double> mean, variance;
};

Moments moments(const Values& values, long rows, long channels) {
  Moments found{std::vector<double>(channels), std::vector<double>(channels)};
  for (long row = 0; row < rows; ++row)
    for (long c = 0; c < channels; ++c) found.mean[c] += values[row * channels + c];
  for (double& mean : found.mean) mean /= double(rows);
  for (long row = 0; row < rows; ++row)
    for (long c = 0; c < channels; ++c) {
      const double away = values[row * channels + c] - found.mean[c];
      found.variance[c] += away * away;
    }
  for (double& variance : found.variance) variance /= double(rows);
  return found;
}

}  // namespace

std::size_t type_bytes(int type) {
  return type == CUDNN_DATA_HALF ? 2 : type == CUDNN_DATA_DOUBLE ? 8 : 4;
}

long elements(const Tensor& t) {
  long count = 1;
  for (int i = 0; i < t.n; ++i) count *= t.size[i];
  return count;
}

Tensor as_tensor(const Filter& f) {
  Tensor t{f.type, f.n, {}, {}};
  std::copy_n(f.size, f.n, t.size);
  long stride = 1;
  if (f.format == CUDNN_TENSOR_NHWC) {
    t.stride[1] = 1;
    stride = f.size[1];
  }
  for (int axis = f.n - 1; axis >= 0; --axis) {
    if (axis == 1 && f.format == CUDNN_TENSOR_NHWC) continue;
    t.stride[axis] = int(stride);
    stride *= f.size[axis];
  }
  return t;
}

void convolve(const Data& x, const Filter& w, const void* weights, const Convolution& c, Blend blend,
              const Data& y) {
  const Patches patches(x.tensor, w, c, y.tensor);
  const Values in = values_of(x), filters = values_of({as_tensor(w), weights});
  Values out(elements(y.tensor));
  const long length = patches.length();
  patches.each_part([&](long first, long images, long to) {
    const Values rows = patches.gather(in, first, images);
    add_product(images * patches.image_rows(), patches.filters, length, {rows.data(), length, false},
                {filters.data(), length, true}, out.data() + to, patches.filters);
  });
  put(y, out, blend);
}

void convolve_back_to_data(const Filter& w, const void* weights, const Data& dy, const Convolution& c,
                           Blend blend, const Data& dx) {
  const Patches patches(dx.tensor, w, c, dy.tensor);
  const Values gradient = values_of(dy), filters = values_of({as_tensor(w), weights});
  Values out(elements(dx.tensor));
  const long length = patches.length();
  patches.each_part([&](long first, long images, long from) {
    Values rows(images * patches.image_rows() * length);
    add_product(images * patches.image_rows(), length, patches.filters,
                {gradient.data() + from, patches.filters, false}, {filters.data(), length, false},
                rows.data(), length);
    patches.scatter(rows, first, images, out);
  });
  put(dx, out, blend);
}

void convolve_back_to_filter(const Data& x, const Data& dy, const Convolution& c, Blend blend,
                             const Filter& w, void* gradient) {
  const Patches patches(x.tensor, w, c, dy.tensor);
  const Values in = values_of(x), out = values_of(dy);
  const Tensor dw = as_tensor(w);
  Values sums(elements(dw));
  const long length = patches.length();
  patches.each_part([&](long first, long images, long from) {
    const Values rows = patches.gather(in, first, images);
    add_product(patches.filters, length, images * patches.image_rows(),
                {out.data() + from, patches.filters, true}, {rows.data(), length, false}, sums.data(),
                length);
  });
  put({dw, gradient}, sums, blend);
}

void sum_to_bias(const Data& dy, Blend blend, const Data& db) {
  const Values values = values_of(dy);
  const long channels = Shape(dy.tensor).c;
  std::vector<double> sums(channels);
  for (std::size_t i = 0; i < values.size(); ++i) sums[i % channels] += values[i];
  put(db, Values(sums.begin(), sums.end()), blend);
}

void add(const Data& addend, Blend blend, const Data& sum) {
  const Shape from(addend.tensor), to(sum.tensor);
  const Values values = values_of(addend);
  Values wide(elements(sum.tensor));
  auto within = [](long i, long size) { return size == 1 ? 0 : i; };
  long place = 0;
  for (long n = 0; n < to.n; ++n)
    for (long h = 0; h < to.h; ++h)
      for (long w = 0; w < to.w; ++w)
        for (long c = 0; c < to.c; ++c) {
          const long pixel = (within(n, from.n) * from.h + within(h, from.h)) * from.w + within(w, from.w);
          wide[place++] = values[pixel * from.c + within(c, from.c)];
        }
  put(sum, wide, blend);
}

// --- batch norm -------------------------------------------------------------------------------------
void normalize_batch(const Data& x, Blend blend, const float* scale, const float* bias, double factor,
                     double epsilon, const Statistics& statistics, const Fused& fused, const Data& y) {
  const Shape shape(x.tensor);
  const long rows = shape.rows(), channels = shape.c;
  Values values = values_of(x);
  const Moments found = moments(values, rows, channels);
  std::vector<double> inverse(channels);
  const double unbiased = rows > 1 ? double(rows) / double(rows - 1) : 1;  // as cuDNN keeps it
  for (long c = 0; c < channels; ++c) {
    inverse[c] = 1 / std::sqrt(found.variance[c] + epsilon);
    if (statistics.running_mean) {
      float& mean = statistics.running_mean[c];
      float& variance = statistics.running_variance[c];
      // With factor 1 cuDNN does not read what was there.
      const double kept_mean = factor == 1 ? 0 : (1 - factor) * mean;
      const double kept_variance = factor == 1 ? 0 : (1 - factor) * variance;
      mean = float(kept_mean + factor * found.mean[c]);
      variance = float(kept_variance + factor * unbiased * found.variance[c]);
    }
    if (statistics.saved_mean) statistics.saved_mean[c] = float(found.mean[c]);
    if (statistics.saved_inverse_deviation)
      statistics.saved_inverse_deviation[c] = float(inverse[c]);
  }
  const Values more = fused.z.place ? values_of(fused.z) : Values();
  if (fused.mask) std::memset(fused.mask, 0, (values.size() + 7) / 8);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const long c = long(i) % channels;
    float value = float(scale[c] * (values[i] - found.mean[c]) * inverse[c] + bias[c]);
    if (!more.empty()) value += more[i];
    if (fused.relu) {
      if (value > 0) fused.mask[i / 8] |= 1 << (i % 8);
      if (value < 0) value = 0;
    }
    values[i] = value;
  }
  put(y, values, blend);
}

void normalize_back(const Data& x, const Data& dy, Blend of_data, Blend of_parameters,
                    const float* scale, float* d_scale, float* d_bias, const float* saved_mean,
                    const float* saved_inverse_deviation, const Fused& fused, const Data& dx) {
  const Shape shape(x.tensor);
  const long rows = shape.rows(), channels = shape.c;
  const Values values = values_of(x);
  Values gradient = values_of(dy);
  if (fused.relu)
    for (std::size_t i = 0; i < gradient.size(); ++i)
      if (!(fused.mask[i / 8] >> (i % 8) & 1)) gradient[i] = 0;
  if (fused.z.place) put(fused.z, gradient, {1, 0});
  const std::vector<double> mean(saved_mean, saved_mean + channels);
  const std::vector<double> inverse(saved_inverse_deviation, saved_inverse_deviation + channels);
  std::vector<double> of_scale(channels), of_bias(channels);
  for (long row = 0; row < rows; ++row)
    for (long c = 0; c < channels; ++c) {
      const long i = row * channels + c;
      of_scale[c] += gradient[i] * (values[i] - mean[c]) * inverse[c];
      of_bias[c] += gradient[i];
    }
  for (long row = 0; row < rows; ++row)
    for (long c = 0; c < channels; ++c) {
      const long i = row * channels + c;
      const double normalized = (values[i] - mean[c]) * inverse[c];
      const double away = gradient[i] - (of_bias[c] + normalized * of_scale[c]) / double(rows);
      gradient[i] = float(scale[c] * inverse[c] * away);
    }
  put(d_scale, of_scale, of_parameters);
  put(d_bias, of_bias, of_parameters);
  put(dx, gradient, of_data);
}

// --- graphs -----------------------------------------------------------------------------------------
void pointwise(int mode, const Data& x, const Data& b, const Data& y) {
  Values values = values_of(x);
  const Values more = b.place ? values_of(b) : Values(1);
  const std::size_t period = more.size();  // channels are innermost
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float other = more[i % period];
    float& value = values[i];
    switch (mode) {
      case CUDNN_POINTWISE_ADD: value += other; break;
      case CUDNN_POINTWISE_SUB: value -= other; break;
      case CUDNN_POINTWISE_MUL: value *= other; break;
      case CUDNN_POINTWISE_RELU_FWD: value = std::max(value, 0.0f); break;
      case CUDNN_POINTWISE_RELU_BWD: value = other > 0 ? value : 0; break;
    }
  }
  put(y, values, {1, 0});
}

void sum_channels(const Data& x, float* sum, float* squares) {
  const Values values = values_of(x);
  const long channels = Shape(x.tensor).c;
  std::vector<double> sums(channels), of_squares(channels);
  for (std::size_t i = 0; i < values.size(); ++i) {
    sums[i % channels] += values[i];
    of_squares[i % channels] += double(values[i]) * values[i];
  }
  put(sum, sums, {1, 0});
  put(squares, of_squares, {1, 0});
}

void sum_norm_back(const Data& x, const Data& dy, const NormBack& norm) {
  const Values values = values_of(x), gradient = values_of(dy);
  const Shape shape(x.tensor);
  std::vector<double> of_scale(shape.c), of_bias(shape.c);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const long c = long(i) % shape.c;
    of_scale[c] += double(gradient[i]) * (values[i] - norm.mean[c]) * norm.inverse_deviation[c];
    of_bias[c] += gradient[i];
  }
  for (long c = 0; c < shape.c; ++c) {
    const double inverse = norm.inverse_deviation[c], by_dy = norm.scale[c] * inverse;
    const double by_x = -by_dy * inverse * of_scale[c] / double(shape.rows());
    norm.by_dy[c] = float(by_dy);
    norm.by_x[c] = float(by_x);
    norm.plus[c] = float(-by_x * norm.mean[c] - by_dy * of_bias[c] / double(shape.rows()));
  }
  put(norm.d_scale, of_scale, {1, 0});
  put(norm.d_bias, of_bias, {1, 0});
}

// --- averages ---------------------------------------------------------------------------------------
void average(const Data& x, Blend blend, const Data& y) {
  const Shape shape(x.tensor);
  const long pixels = shape.h * shape.w;
  const Values in = values_of(x);
  std::vector<double> sums(shape.n * shape.c);
  for (std::size_t i = 0; i < in.size(); ++i) sums[mean_of(i, shape)] += in[i];
  for (double& sum : sums) sum /= double(pixels);
  put(y, Values(sums.begin(), sums.end()), blend);
}

void average_back(const Data& dy, Blend blend, const Data& dx) {
  const Shape shape(dx.tensor);
  const Values gradient = values_of(dy);
  Values out(elements(dx.tensor));
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = gradient[mean_of(i, shape)] / float(shape.h * shape.w);
  put(dx, out, blend);
}

}  // namespace compute
