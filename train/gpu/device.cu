// The kernels of a training step beside cuDNN's: images, loss, norms, update, counts, casts. NVRTC
// compiles this text for the GPU that is there, so it needs no machine code of MXNet's wheel; a C++
// compiler takes it too, with emulated threads (tests/train/emulated.h).
//
// No sum depends on the order in which blocks run: replicas have to agree bit for bit. Sums of floats
// go through `block_sum`, of integers through atomicAdd.

#ifdef EMULATED
typedef _Float16 half_t;
__device__ float to_float(half_t x) { return x; }
__device__ half_t to_half(float x) { return x; }
__device__ half_t half_of(unsigned bits) { return __builtin_bit_cast(half_t, (unsigned short)bits); }
__device__ unsigned bits_of(half_t x) { return __builtin_bit_cast(unsigned short, x); }
#else
struct __align__(2) half_t { unsigned short bits; };  // cuda_fp16.h is not in the wheel
__device__ float to_float(half_t x) {
  float y;
  asm("{cvt.f32.f16 %0, %1;}\n" : "=f"(y) : "h"(x.bits));
  return y;
}
__device__ half_t to_half(float x) {
  half_t y;
  asm("{cvt.rn.f16.f32 %0, %1;}\n" : "=h"(y.bits) : "f"(x));
  return y;
}
__device__ half_t half_of(unsigned bits) {
  const half_t x = {(unsigned short)bits};
  return x;
}
__device__ unsigned bits_of(half_t x) { return x.bits; }
#endif
__device__ float to_float(float x) { return x; }
__device__ void store(float* to, float x) { *to = x; }
__device__ void store(half_t* to, float x) { *to = to_half(x); }

#define THREADS 256  // of every block, at most; a power of two
// Two blocks or more have to fit on a multiprocessor: 128 registers a thread at most.
#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS, 2)
// A kernel name_half and a kernel name_float: T is the type in the parameters and in the body.
// `parameters` of module.py reads this form as well. NVRTC finds kernels by C's names alone, which
// have no namespace.
#define TYPED_KERNEL(name, parameters, ...)        \
  namespace name##_of_half {                       \
  typedef half_t T;                                \
  KERNEL name##_half parameters __VA_ARGS__        \
  }                                                \
  namespace name##_of_float {                      \
  typedef float T;                                 \
  KERNEL name##_float parameters __VA_ARGS__       \
  }                                                \
  using name##_of_half::name##_half;               \
  using name##_of_float::name##_float;
#define CHUNK 16384  // elements of a tensor that one block takes (update.py)

// The sum (or the maximum) over the threads of a block, in a fixed order, on all of them.
__device__ float block_sum(float value) {
  __shared__ float parts[THREADS];
  parts[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    __syncthreads();
  }
  const float sum = parts[0];
  __syncthreads();
  return sum;
}

__device__ float block_max(float value) {
  __shared__ float parts[THREADS];
  parts[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) parts[threadIdx.x] = fmaxf(parts[threadIdx.x], parts[threadIdx.x + half]);
    __syncthreads();
  }
  const float largest = parts[0];
  __syncthreads();
  return largest;
}

// What changes with each step, word by word: a captured launch has always the same arguments.
__device__ float number(const long long* now, int word) { return *(const float*)(now + word); }
#define IMAGES 0  // of a step (plan_operators.py)
#define LABELS 1
#define LOSSES 2
#define SCALE 3
#define LR 0  // of an update (update.py)
#define MOMENTUM 1
#define RESCALE 2
#define SGD 3
#define RMS 4

__device__ bool is_finite(float x) { return fabsf(x) <= 3.402823466e38f; }

// --- loss ---------------------------------------------------------------------------------------

// Cross-entropy of one image a block, with `off` for `off_target`, the smoothed target of each class
// that is not the label's: L = -(1 - K off) log p_label - off sum log p, and
// scale dL/dlogits = scale (p - (1 - K off) [label] - off).
template <typename T>
__device__ void cross_entropy(const T* logits, const long long* now, T* gradient, int classes,
                              float off_target) {
  const long long row = (long long)blockIdx.x * classes;
  const int label = (int)((const float*)now[LABELS])[blockIdx.x];
  const float scale = number(now, SCALE);
  const float true_minus_off = 1 - off_target * classes;
  float largest = -3.402823466e38f;
  for (int i = threadIdx.x; i < classes; i += blockDim.x)
    largest = fmaxf(largest, to_float(logits[row + i]));
  largest = block_max(largest);
  float exponentials = 0;
  float shifted = 0;
  for (int i = threadIdx.x; i < classes; i += blockDim.x) {
    const float x = to_float(logits[row + i]) - largest;
    exponentials += expf(x);
    shifted += x;
  }
  exponentials = block_sum(exponentials);
  shifted = block_sum(shifted);
  for (int i = threadIdx.x; i < classes; i += blockDim.x) {
    const float p = expf(to_float(logits[row + i]) - largest) / exponentials;
    store(&gradient[row + i], scale * (p - off_target - (i == label ? true_minus_off : 0)));
  }
  if (threadIdx.x == 0) {
    const float log_sum = logf(exponentials);
    const float log_p = to_float(logits[row + label]) - largest - log_sum;
    const float loss = -(true_minus_off * log_p + off_target * (shifted - classes * log_sum));
    ((float*)now[LOSSES])[blockIdx.x] = loss;
  }
}

TYPED_KERNEL(loss, (const T* logits, const long long* now, T* gradient, int classes,
                    float off_target), {
  cross_entropy(logits, now, gradient, classes, off_target);
})

__device__ float total(const float* losses, int images) {
  float mine = 0;
  for (int i = threadIdx.x; i < images; i += blockDim.x) mine += losses[i];
  return block_sum(mine);
}

// One block: the sum of a batch's losses.
KERNEL sum_losses(const float* losses, float* sum, int images) {
  const float batch = total(losses, images);
  if (threadIdx.x == 0) sum[0] = batch;
}

// One block: the losses of this step join those before.
KERNEL add_losses(const long long* now, float* sum, int images) {
  const float batch = total((const float*)now[LOSSES], images);
  if (threadIdx.x == 0) sum[0] += batch;
}

// --- evaluation ---------------------------------------------------------------------------------

// One image a block adds to counts: [its class scores highest, is among the `top` highest, it is an
// image at all and no padding, whose label is -1]. Of equal scores the first class ranks higher. A
// score that is not a number is no hit.
template <typename T>
__device__ void count(const T* scores, const float* labels, int* counts, int classes, int top) {
  const long long row = (long long)blockIdx.x * classes;
  const int label = (int)labels[blockIdx.x];
  if (label < 0) return;  // the whole block
  const float score = to_float(scores[row + label]);
  float above = 0;
  for (int i = threadIdx.x; i < classes; i += blockDim.x) {
    const float x = to_float(scores[row + i]);
    if (i != label && !(x < score) && !(x == score && i > label)) above += 1;
  }
  above = block_sum(above);
  if (threadIdx.x == 0) {
    if (above < 1) atomicAdd(&counts[0], 1);
    if (above < top) atomicAdd(&counts[1], 1);
    atomicAdd(&counts[2], 1);
  }
}

TYPED_KERNEL(hits, (const T* scores, const float* labels, int* counts, int classes, int top), {
  count(scores, labels, counts, classes, top);
})

// --- update -------------------------------------------------------------------------------------

// A row of the table of tensors (update.py): addresses, elements, first of its chunks.
struct Tensor {
  void* weight;
  const void* gradient;
  float* velocity;
  float* master;  // of a float16 weight, which follows it; else null
  float* square;  // of RMSprop, else null
  long long size;
  long long first_chunk;
  long long is_half;

  __device__ float value(long long i) const { return master ? master[i] : ((float*)weight)[i]; }
  __device__ float slope(long long i) const {
    return is_half ? to_float(((const half_t*)gradient)[i]) : ((const float*)gradient)[i];
  }
  __device__ void set(long long i, float value) const {
    if (!master) {
      ((float*)weight)[i] = value;
      return;
    }
    master[i] = value;
    ((half_t*)weight)[i] = to_half(value);
  }
};

// The part of a tensor that a block takes.
struct Chunk {
  int tensor;
  long long begin, end;
};

__device__ Chunk chunk_of(const long long* tensors, const int* chunks) {
  Chunk c;
  c.tensor = chunks[blockIdx.x];
  const Tensor t = ((const Tensor*)tensors)[c.tensor];
  c.begin = (blockIdx.x - t.first_chunk) * CHUNK;
  c.end = c.begin + CHUNK < t.size ? c.begin + CHUNK : t.size;
  return c;
}

// Sums of squares of weights and gradients, by chunk.
KERNEL square_sums(const long long* tensors, const int* chunks, float* sums) {
  const Chunk c = chunk_of(tensors, chunks);
  const Tensor t = ((const Tensor*)tensors)[c.tensor];  // a copy: what is stored may alias the table
  float w = 0, g = 0;
  for (long long i = c.begin + threadIdx.x; i < c.end; i += blockDim.x) {
    w += t.value(i) * t.value(i);
    g += t.slope(i) * t.slope(i);
  }
  w = block_sum(w);
  g = block_sum(g);
  if (threadIdx.x == 0) {
    sums[2 * blockIdx.x] = w;
    sums[2 * blockIdx.x + 1] = g;
  }
}

// One block: the learning rate of each tensor (`kernels/update.cc` has the formula), and behind them
// 1, or 0 where `guarded` and a gradient is not finite.
KERNEL rates(const long long* tensors, const float* etas, const float* decays, const float* sums,
             float* rates, const long long* now, int count, int guarded, float epsilon,
             float decay_factor, int epsilon_only_below) {
  const float lr = number(now, LR);
  const float rescale = number(now, RESCALE);
  float infinite = 0;
  for (int n = threadIdx.x; n < count; n += blockDim.x) {
    const Tensor t = ((const Tensor*)tensors)[n];
    double squares_w = 0, squares_g = 0;
    for (long long c = t.first_chunk; c < t.first_chunk + (t.size + CHUNK - 1) / CHUNK; ++c) {
      squares_w += sums[2 * c];
      squares_g += sums[2 * c + 1];
    }
    if (!is_finite((float)squares_g)) infinite = 1;
    const double w = sqrt(squares_w), g = sqrt(squares_g) * rescale;
    double below = g + decays[n] * decay_factor * w, trust = 1;
    if (!epsilon_only_below || below < epsilon) below += epsilon;
    if (etas[n] > 0 && w > 0 && below > 0 && (epsilon_only_below ? w >= epsilon : g > 0))
      trust = etas[n] * w / below;
    rates[n] = (float)(lr * trust);
  }
  const bool stop = guarded && block_sum(infinite) > 0;
  if (threadIdx.x == 0) rates[count] = stop ? 0 : 1;
}

// v <- momentum v - rate (rescale g + decay w);  w <- w + v, as MXNet's operators have the sign.
KERNEL update(const long long* tensors, const int* chunks, const float* decays, const float* rates,
              const long long* now, int count) {
  const float momentum = number(now, MOMENTUM);
  const float rescale = number(now, RESCALE);
  const Chunk c = chunk_of(tensors, chunks);
  const Tensor t = ((const Tensor*)tensors)[c.tensor];  // a copy: what is stored may alias the table
  const float rate = rates[c.tensor], decay = decays[c.tensor];
  const bool finite = rates[count] > 0;
  for (long long i = c.begin + threadIdx.x; i < c.end; i += blockDim.x) {
    const float w = t.value(i);
    const float change = finite ? rate * (rescale * t.slope(i) + decay * w) : 0;
    t.velocity[i] = momentum * t.velocity[i] - change;
    t.set(i, w + t.velocity[i]);
  }
}

// Akiba et al. (1711.04325), see optimizer.py: SGD and RMS are the shares of the two rules.
KERNEL update_rmsprop(const long long* tensors, const int* chunks, const float* decays,
                      const float* rates, const long long* now, int count, float keep,
                      float epsilon) {
  const float momentum = number(now, MOMENTUM);
  const float rescale = number(now, RESCALE);
  const float sgd = number(now, SGD);
  const float rms = number(now, RMS);
  const float lr = number(now, LR);
  const Chunk c = chunk_of(tensors, chunks);
  const Tensor t = ((const Tensor*)tensors)[c.tensor];  // a copy: what is stored may alias the table
  const float decay = decays[c.tensor];
  const bool finite = rates[count] > 0;
  for (long long i = c.begin + threadIdx.x; i < c.end; i += blockDim.x) {
    const float w = t.value(i), g = finite ? rescale * t.slope(i) + decay * w : 0;
    t.square[i] = keep * t.square[i] + (1 - keep) * g * g;
    t.velocity[i] = momentum * t.velocity[i] - (sgd + rms / (sqrtf(t.square[i]) + epsilon)) * g;
    t.set(i, w + lr * t.velocity[i]);
  }
}

// --- arrays -------------------------------------------------------------------------------------

#define EACH(i, count)                                                       \
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; \
       i += (long long)gridDim.x * blockDim.x)

TYPED_KERNEL(fill, (T* array, int size, float value), {
  EACH(i, size) store(&array[i], value);
})

KERNEL scale(float* array, int size, float factor) {
  EACH(i, size) array[i] *= factor;
}

KERNEL narrow(const float* from, half_t* to, int size, float factor) {
  EACH(i, size) to[i] = to_half(factor * from[i]);
}

KERNEL widen(const half_t* from, float* to, int size, float factor) {
  EACH(i, size) to[i] = factor * to_float(from[i]);
}

// array += sign roots^2: variances to mean squares (1) and back (-1).
KERNEL add_square(float* array, const float* roots, int size, float sign) {
  EACH(i, size) array[i] += sign * roots[i] * roots[i];
}

// --- layers --------------------------------------------------------------------------------------

// Images of three channels in float32 become (image, pixel, 4), the fourth 0: cuDNN's kernels for
// tensor cores take channels by four. The strides are those of the source.
TYPED_KERNEL(images, (const long long* now, T* to, int pixels, int area, int pixel_stride,
                      int channel_stride), {
  const float* images = (const float*)now[IMAGES];
  EACH(i, pixels) {
    const float* from = images + i / area * 3 * area + i % area * pixel_stride;
    for (int channel = 0; channel < 3; ++channel)
      store(&to[4 * i + channel], from[(long long)channel * channel_stride]);
    store(&to[4 * i + 3], 0.0f);
  }
})

// Rows of a number of channels as rows of more, with zeros, or of fewer.
TYPED_KERNEL(channels, (const T* from, T* to, int size, int from_channels, int to_channels), {
  EACH(i, size) {
    const int channel = i % to_channels;
    if (channel < from_channels)
      to[i] = from[i / to_channels * from_channels + channel];
    else
      store(&to[i], 0.0f);
  }
})

// Max pooling over windows of 3 x 3 at every second pixel, padded by one, and where in its window
// each maximum lies: of equal ones the first. What is no number is the largest.
template <typename T>
__device__ void max_pool(const T* x, T* y, unsigned char* places, int size, int height, int width,
                         int channels) {
  const int rows = (height + 1) / 2, columns = (width + 1) / 2;
  EACH(i, size) {
    const int channel = (int)i % channels, window = (int)i / channels;
    const int top = 2 * (window / columns % rows) - 1, left = 2 * (window % columns) - 1;
    const T* image = x + (long long)(window / columns / rows) * height * width * channels;
    float largest = -3.402823466e38f;
    int place = 4;  // the middle, which is always inside
    for (int k = 0; k < 9; ++k) {
      const int row = top + k / 3, column = left + k % 3;
      if (row < 0 || column < 0 || row >= height || column >= width) continue;
      const float value = to_float(image[(row * width + column) * channels + channel]);
      if (value <= largest || largest != largest) continue;
      largest = value;
      place = k;
    }
    store(&y[i], largest);
    places[i] = place;
  }
}

TYPED_KERNEL(max_pool, (const T* x, T* y, unsigned char* places, int size, int height, int width,
                        int channels), {
  max_pool(x, y, places, size, height, width, channels);
})

// Its gradient. A thread writes four pixels: those of which no window but its own and the next three
// (to the right, below, and both) hold any.
template <typename T>
__device__ void max_pool_back(const T* dy, const unsigned char* places, T* dx, int size, int height,
                              int width, int channels) {
  const int rows = (height + 1) / 2, columns = (width + 1) / 2;
  EACH(i, size) {
    const int window = (int)i / channels;
    const int row = window / columns % rows, column = window % columns;
    float sums[4] = {0, 0, 0, 0};
    for (int next = 0; next < 4; ++next) {
      const int below = next / 2, right = next % 2;
      if (row + below >= rows || column + right >= columns) continue;
      const long long from = i + (long long)(below * columns + right) * channels;
      const int place = places[from];
      const int pixel_row = 2 * below - 1 + place / 3, pixel_column = 2 * right - 1 + place % 3;
      const float slope = to_float(dy[from]);
      for (int pixel = 0; pixel < 4; ++pixel)
        if (pixel_row == pixel / 2 && pixel_column == pixel % 2) sums[pixel] += slope;
    }
    T* image = dx + (long long)(window / columns / rows) * height * width * channels;
    for (int pixel = 0; pixel < 4; ++pixel) {
      const int to_row = 2 * row + pixel / 2, to_column = 2 * column + pixel % 2;
      if (to_row < height && to_column < width)
        store(&image[(to_row * width + to_column) * channels + (int)i % channels], sums[pixel]);
    }
  }
}

TYPED_KERNEL(max_pool_back, (const T* dy, const unsigned char* places, T* dx, int size, int height,
                             int width, int channels), {
  max_pool_back(dy, places, dx, size, height, width, channels);
})

__device__ float positive(float x) { return x <= 0 ? 0 : x; }  // what is no number remains so

// y <- ReLU(y + z), where cuDNN's batch norm does not do it; without z: ReLU(y).
TYPED_KERNEL(rectify, (T* y, const T* z, int size), {
  EACH(i, size) store(&y[i], positive(to_float(y[i]) + (z ? to_float(z[i]) : 0.0f)));
})

// Its gradient: dy <- 0 where y is 0.
TYPED_KERNEL(mask, (const T* y, T* dy, int size), {
  EACH(i, size) if (to_float(y[i]) <= 0) store(&dy[i], 0.0f);
})

// --- batch norm ----------------------------------------------------------------------------------
//
// Maps are rows of channels, a row a pixel of an image. A thread keeps a column of N channels, 16 bytes
// wide, or of one channel where their number is no multiple, and walks through its slice of the rows
// with R of them in flight. A block has `lanes` columns side by side; its other threads take other
// rows. Sums over slices are added by the block that comes last, in the order of the slices: no block
// waits for another, so that kernels of NCCL may hold any number of multiprocessors. What reads a
// tensor a second time begins at its end, which is still in the cache.

#define MOST_CHANNELS 8  // of a column
#ifdef EMULATED
#define UNROLL
#define TWO_AT_A_TIME
#define ROLLED
#else
#define UNROLL _Pragma("unroll")
#define TWO_AT_A_TIME _Pragma("unroll 2")
#define ROLLED _Pragma("unroll 1")
#endif

// How N channels lie in memory.
template <typename T, int N>
struct Column {
  typedef T Bits;
  static __device__ void unpack(float* to, T bits) { to[0] = to_float(bits); }
  static __device__ void pack(T* to, const float* from) { store(to, from[0]); }
};
template <>
struct Column<float, 4> {
  typedef float4 Bits;
  static __device__ void unpack(float* to, const float4& bits) {
    to[0] = bits.x;
    to[1] = bits.y;
    to[2] = bits.z;
    to[3] = bits.w;
  }
  static __device__ void pack(float4* to, const float* from) {
    const float4 bits = {from[0], from[1], from[2], from[3]};
    *to = bits;
  }
};
template <>
struct Column<half_t, 8> {
  typedef uint4 Bits;
  static __device__ void unpack(float* to, const uint4& bits) {
    const unsigned words[] = {bits.x, bits.y, bits.z, bits.w};
    UNROLL
    for (int i = 0; i < 8; ++i) to[i] = to_float(half_of(words[i / 2] >> 16 * (i % 2)));
  }
  static __device__ void pack(uint4* to, const float* from) {
    unsigned words[4] = {};
    UNROLL
    for (int i = 0; i < 8; ++i) words[i / 2] |= bits_of(to_half(from[i])) << 16 * (i % 2);
    const uint4 bits = {words[0], words[1], words[2], words[3]};
    *to = bits;
  }
};

struct Maps {
  int rows, channels, lanes, slices;
};

// The rows of a thread's column that it has in flight.
struct Rows {
  int first, step, end, channels, channel;

  __device__ bool has(int k) const { return first + k * step < end; }
  __device__ long long place(int k) const { return (long long)(first + k * step) * channels + channel; }
};

template <int count>
__device__ void read_floats(float* to, const float* from) {
  enum { kWide = count % 4 ? 1 : 4 };
  typedef Column<float, kWide> Floats;
  UNROLL
  for (int i = 0; i < count; i += kWide) Floats::unpack(to + i, *(const typename Floats::Bits*)(from + i));
}

// What a block does at a time: a slice of the rows, of some columns. Any number of blocks and threads
// does all parts.
template <int N, int R>
struct Part {
  int rows, channels, slices;
  int columns, lanes, threads, groups, chunks;  // `threads` of a block have the same column
  int row, column, group, slice;                // of this thread, in this part

  __device__ Part(const Maps& maps)
      : rows(maps.rows), channels(maps.channels), slices(maps.slices) {
    columns = channels / N;
    lanes = maps.lanes < columns ? maps.lanes : columns;
    if (lanes > (int)blockDim.x) lanes = blockDim.x;
    threads = blockDim.x / lanes;
    groups = (columns + lanes - 1) / lanes;
    chunks = (rows + threads * R - 1) / (threads * R);
    row = threadIdx.x / lanes;
  }
  __device__ bool take(int number) {
    group = number % groups;
    slice = number / groups;
    column = group * lanes + threadIdx.x % lanes;
    return number < groups * slices;
  }
  __device__ bool is_used() const { return row < threads && column < columns; }
  __device__ int channel() const { return column * N; }
  __device__ Rows chunk(int number) const {
    const int first = number * threads * R + row;
    const Rows found = {first, threads, is_used() ? rows : 0, channels, channel()};
    return found;
  }
  __device__ void read(float* to, const float* from) const {
    if (is_used()) read_floats<N>(to, from + channel());
  }
};

#define EACH_PART(part) ROLLED for (int number = blockIdx.x; part.take(number); number += gridDim.x)
#define EACH_CHUNK(c, part) ROLLED for (int c = part.slice; c < part.chunks; c += part.slices)

// Of one tensor, what a thread has in flight.
template <typename T, int N, int R>
struct Fetched {
  typedef Column<T, N> Bytes;
  typename Bytes::Bits bits[R];

  __device__ Fetched(const T* from, const Rows& rows) {
    UNROLL
    for (int k = 0; k < R; ++k)
      if (rows.has(k)) bits[k] = *(const typename Bytes::Bits*)(from + rows.place(k));
  }
  __device__ void read(int k, float* values) const { Bytes::unpack(values, bits[k]); }
};

template <typename T, int N>
__device__ void put(T* to, const float* values, const Rows& rows, int k) {
  Column<T, N>::pack((typename Column<T, N>::Bits*)(to + rows.place(k)), values);
}

__device__ float* shared_sums() {
  __shared__ float sums[2 * MOST_CHANNELS * THREADS];
  return sums;
}

// Leaves the sums over the threads of a block that have the same column in `shared_sums`, where a row
// is one of the 2 N sums.
template <int N, int R>
__device__ void add_threads(const float* sums, const Part<N, R>& part) {
  float* shared = shared_sums() + threadIdx.x;
  __syncthreads();
  UNROLL
  for (int i = 0; i < 2 * N; ++i) shared[i * blockDim.x] = sums[i];
  __syncthreads();
  for (int rest = part.threads; rest > 1;) {
    const int half = (rest + 1) / 2;
    if (part.row < rest - half) {
      UNROLL
      for (int i = 0; i < 2 * N; ++i) shared[i * blockDim.x] += shared[i * blockDim.x + half * part.lanes];
    }
    rest = half;
    __syncthreads();
  }
}

// Whether this block is the last of `count` to come here; the counter is 0 again then.
__device__ bool comes_last(int* arrived, int count) {
  __shared__ int before;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();  // what this block has written, which the barrier lets its first thread see
    before = atomicAdd(arrived, 1);
    if (before == count - 1) *arrived = 0;
    __threadfence();
  }
  __syncthreads();
  return before == count - 1;
}

// One of the sums of a block's columns, of which each thread takes some.
struct Sum {
  int channel;  // of the maps; no less than theirs: none
  int number;
  float* place;
};
template <int N, int R>
__device__ Sum sum_of(const Part<N, R>& part, int n) {
  const int lane = n % part.lanes, number = n / part.lanes;
  const int channel = (part.group * part.lanes + lane) * N + number % N;
  const Sum found = {channel, number, shared_sums() + number * blockDim.x + lane};
  return found;
}
#define EACH_SUM(n, count, part) ROLLED for (int n = threadIdx.x; n < count * part.lanes; n += blockDim.x)

// The sums over all threads and slices of a column in `shared_sums` of one block, which gets true.
template <int N, int R>
__device__ bool add_slices(const float* sums, const Part<N, R>& part, float* partials, int* arrived) {
  add_threads(sums, part);
  if (part.slices == 1) return true;
  const long long step = 2 * part.channels;
  EACH_SUM(n, 2 * N, part) {
    const Sum sum = sum_of(part, n);
    if (sum.channel >= part.channels) continue;
    const int place = sum.channel / N * 2 * N + sum.number;
    partials[part.slice * step + place] = *sum.place;
  }
  if (!comes_last(arrived + part.group, part.slices)) return false;
  float totals[2 * N] = {}, more[2 * N];
  TWO_AT_A_TIME
  for (int slice = part.row; part.is_used() && slice < part.slices; slice += part.threads) {
    read_floats<2 * N>(more, partials + slice * step + 2 * part.channel());
    UNROLL
    for (int i = 0; i < 2 * N; ++i) totals[i] += more[i];
  }
  add_threads(totals, part);
  return true;
}

// A norm as scale x + shift, and by which statistics.
struct Terms {
  float *mean, *inverse, *scale, *shift;
  float epsilon;

  __device__ void set(int channel, float of_mean, float variance, const float* gamma,
                      const float* beta) const {
    const float by = 1 / sqrtf(variance + epsilon);
    mean[channel] = of_mean;
    inverse[channel] = by;
    scale[channel] = gamma[channel] * by;
    shift[channel] = beta[channel] - of_mean * gamma[channel] * by;
  }
};

// Parameters of a norm, and the statistics that it keeps, as cuDNN has them.
struct Kept {
  const float *gamma, *beta;
  float *running_mean, *running_variance;
  float factor;  // of what joins them

  // Of `rows` values the sum and the sum of squares, both of their differences from `pivot`.
  __device__ void join(const Terms& terms, int channel, float pivot, float sum, float squares,
                       int rows) const {
    const float away = sum / rows;
    const float spread = squares / rows - away * away;
    const float variance = spread < 0 ? 0 : spread;
    terms.set(channel, pivot + away, variance, gamma, beta);
    mix(&running_mean[channel], pivot + away);
    mix(&running_variance[channel], rows > 1 ? variance * (rows / (rows - 1.0f)) : variance);
  }
  // With factor 1 what was there is not read.
  __device__ void mix(float* running, float found) const {
    *running = factor == 1 ? found : (1 - factor) * *running + factor * found;
  }
};

// The terms by a batch's mean and variance, which are found about its first row: squares of large
// values would lose the variance.
template <typename T, int N, int R>
__device__ void find_terms(const Part<N, R>& part, const T* x, const Kept& kept, const Terms& terms,
                           float* partials, int* arrived) {
  float pivot[N] = {}, sums[2 * N] = {};
  if (part.is_used()) Column<T, N>::unpack(pivot, *(const typename Column<T, N>::Bits*)(x + part.channel()));
  EACH_CHUNK(c, part) {
    const Rows rows = part.chunk(c);
    const Fetched<T, N, R> fetched(x, rows);
    UNROLL
    for (int k = 0; k < R; ++k) {
      if (!rows.has(k)) continue;
      float values[N];
      fetched.read(k, values);
      UNROLL
      for (int i = 0; i < N; ++i) {
        const float away = values[i] - pivot[i];
        sums[i] += away;
        sums[N + i] += away * away;
      }
    }
  }
  if (!add_slices(sums, part, partials, arrived)) return;
  EACH_SUM(n, N, part) {
    const Sum sum = sum_of(part, n);
    if (sum.channel >= part.channels) continue;
    kept.join(terms, sum.channel, to_float(x[sum.channel]), sum.place[0], sum.place[N * blockDim.x],
              part.rows);
  }
}

// y <- scale x + shift + z, ReLU. `signs`: a byte for a column in a row, with a bit where y is not 0.
template <typename T, int N, int R>
__device__ void apply(const Part<N, R>& part, const T* x, const T* z, const float* scale,
                      const float* shift, T* y, unsigned char* signs, int relu) {
  float scales[N], shifts[N];
  part.read(scales, scale);
  part.read(shifts, shift);
  EACH_CHUNK(c, part) {
    const Rows rows = part.chunk(part.chunks - 1 - c);
    Rows rows_of_z = rows;
    if (!z) rows_of_z.end = 0;
    const Fetched<T, N, R> first(x, rows), second(z, rows_of_z);
    UNROLL
    for (int k = 0; k < R; ++k) {
      if (!rows.has(k)) continue;
      float values[N], more[N];
      first.read(k, values);
      second.read(k, more);
      unsigned bits = 0;
      UNROLL
      for (int i = 0; i < N; ++i) {
        values[i] = values[i] * scales[i] + shifts[i];
        if (z) values[i] += more[i];
        if (relu) values[i] = positive(values[i]);
        bits |= (values[i] != 0) << i;
      }
      put<T, N>(y, values, rows, k);
      if (signs) signs[rows.place(k) / N] = bits;
    }
  }
}

// dx = scale dy + of_x x + constant, and the gradients of the parameters.
struct Slopes {
  float *d_gamma, *d_beta, *of_x, *constant;

  // Of `rows` values the sum of dy, and of dy (x - mean).
  __device__ void set(const Terms& terms, int channel, float sum, float product, int rows) const {
    const float inverse = terms.inverse[channel];
    const float scale = terms.scale[channel];
    const float gradient = product * inverse;
    const float factor = -scale * inverse * gradient / rows;
    d_gamma[channel] = gradient;
    d_beta[channel] = sum;
    of_x[channel] = factor;
    constant[channel] = -scale * sum / rows - factor * terms.mean[channel];
  }
};

// Sums of dy, which ReLU makes 0 where `signs` has no bit; it is stored to dz then. Without signs the
// norm is computed again to see where.
template <typename T, int N, int R>
__device__ void find_slopes(const Part<N, R>& part, const T* x, const T* dy, T* dz,
                            const unsigned char* signs, const Terms& terms, const Slopes& slopes,
                            float* partials, int* arrived, int relu) {
  float means[N], scales[N], shifts[N], sums[2 * N] = {};
  part.read(means, terms.mean);
  part.read(scales, terms.scale);
  part.read(shifts, terms.shift);
  EACH_CHUNK(c, part) {
    const Rows rows = part.chunk(c);
    const Fetched<T, N, R> first(x, rows), second(dy, rows);
    UNROLL
    for (int k = 0; k < R; ++k) {
      if (!rows.has(k)) continue;
      float values[N], gradients[N];
      first.read(k, values);
      second.read(k, gradients);
      const int bits = signs ? signs[rows.place(k) / N] : 0;
      UNROLL
      for (int i = 0; i < N; ++i) {
        const bool is_zero = signs ? !(bits >> i & 1) : relu && values[i] * scales[i] + shifts[i] <= 0;
        if (is_zero) gradients[i] = 0;
        sums[i] += gradients[i];
        sums[N + i] += gradients[i] * (values[i] - means[i]);
      }
      if (dz) put<T, N>(dz, gradients, rows, k);
    }
  }
  if (!add_slices(sums, part, partials, arrived)) return;
  EACH_SUM(n, N, part) {
    const Sum sum = sum_of(part, n);
    if (sum.channel < part.channels)
      slopes.set(terms, sum.channel, sum.place[0], sum.place[N * blockDim.x], part.rows);
  }
}

// dx may lie where x does.
template <typename T, int N, int R>
__device__ void apply_back(const Part<N, R>& part, const T* x, const T* dy, const float* scale,
                           const float* shift, const float* of_x, const float* constant, T* dx,
                           int relu) {
  float scales[N], shifts[N], factors[N], constants[N];
  part.read(scales, scale);
  part.read(shifts, shift);
  part.read(factors, of_x);
  part.read(constants, constant);
  EACH_CHUNK(c, part) {
    const Rows rows = part.chunk(part.chunks - 1 - c);
    const Fetched<T, N, R> first(x, rows), second(dy, rows);
    UNROLL
    for (int k = 0; k < R; ++k) {
      if (!rows.has(k)) continue;
      float values[N], gradients[N];
      first.read(k, values);
      second.read(k, gradients);
      UNROLL
      for (int i = 0; i < N; ++i) {
        if (relu && values[i] * scales[i] + shifts[i] <= 0) gradients[i] = 0;
        values[i] = scales[i] * gradients[i] + (factors[i] * values[i] + constants[i]);
      }
      put<T, N>(dx, values, rows, k);
    }
  }
}

// Has a function for columns of 16 bytes, or of one channel.
#define BY_COLUMNS(function, T, ...)    \
  if (maps.channels % (16 / sizeof(T))) \
    function<T, 1>(maps, __VA_ARGS__);  \
  else                                  \
    function<T, 16 / sizeof(T)>(maps, __VA_ARGS__)

// Scale and shift of a norm, by its running statistics.
KERNEL running_terms(const float* gamma, const float* beta, const float* running_mean,
                     const float* running_variance, float* mean, float* inverse, float* scale,
                     float* shift, int channels, float epsilon) {
  const Terms terms = {mean, inverse, scale, shift, epsilon};
  EACH(c, channels) terms.set((int)c, running_mean[c], running_variance[c], gamma, beta);
}

// The same, and new running statistics, where a convolution has summed its results and their squares.
KERNEL summed_terms(const float* sums, const float* squares, const float* gamma, const float* beta,
                    float* running_mean, float* running_variance, float* mean, float* inverse,
                    float* scale, float* shift, half_t* half_scale, half_t* half_shift, int rows,
                    int channels, float factor, float epsilon) {
  const Terms terms = {mean, inverse, scale, shift, epsilon};
  const Kept kept = {gamma, beta, running_mean, running_variance, factor};
  EACH(c, channels) {
    kept.join(terms, (int)c, 0, sums[c], squares[c], rows);
    if (half_scale) store(&half_scale[c], scale[c]);
    if (half_shift) store(&half_shift[c], shift[c]);
  }
}

template <typename T, int N>
__device__ void normalise(const Maps& maps, const T* x, const T* z, const float* scale,
                          const float* shift, T* y, unsigned char* signs, int relu) {
  Part<N, 2> part(maps);
  EACH_PART(part) apply(part, x, z, scale, shift, y, signs, relu);
}

TYPED_KERNEL(normalise, (const T* x, const T* z, const float* scale, const float* shift, T* y,
                         unsigned char* signs, int rows, int channels, int lanes, int slices,
                         int relu), {
  const Maps maps = {rows, channels, lanes, slices};
  BY_COLUMNS(normalise, T, x, z, scale, shift, y, signs, relu);
})

// Compiled where a step has norms of ours (module.py): NVRTC takes 3 s more for what follows.
#ifdef TRAINED_NORMS

template <typename T, int N>
__device__ void norm_terms(const Maps& maps, const T* x, const Kept& kept, const Terms& terms,
                           float* partials, int* arrived) {
  Part<N, 4> part(maps);
  EACH_PART(part) find_terms(part, x, kept, terms, partials, arrived);
}

TYPED_KERNEL(norm_terms, (const T* x, const float* gamma, const float* beta, float* running_mean,
                          float* running_variance, float* mean, float* inverse, float* scale,
                          float* shift, float* partials, int* arrived, int rows, int channels,
                          int lanes, int slices, float factor, float epsilon), {
  const Maps maps = {rows, channels, lanes, slices};
  const Terms terms = {mean, inverse, scale, shift, epsilon};
  const Kept kept = {gamma, beta, running_mean, running_variance, factor};
  BY_COLUMNS(norm_terms, T, x, kept, terms, partials, arrived);
})

// Terms and norm at once, where a slice is all rows.
template <typename T, int N>
__device__ void norm(const Maps& maps, const T* x, const T* z, const Kept& kept, const Terms& terms,
                     T* y, unsigned char* signs, int relu) {
  Part<N, 2> part(maps);
  part.slices = 1;
  EACH_PART(part) {
    find_terms(part, x, kept, terms, (float*)0, (int*)0);
    __syncthreads();
    apply(part, x, z, terms.scale, terms.shift, y, signs, relu);
  }
}

TYPED_KERNEL(norm, (const T* x, const T* z, const float* gamma, const float* beta,
                    float* running_mean, float* running_variance, float* mean, float* inverse,
                    float* scale, float* shift, T* y, unsigned char* signs, int rows, int channels,
                    int lanes, int slices, float factor, float epsilon, int relu), {
  const Maps maps = {rows, channels, lanes, slices};
  const Terms terms = {mean, inverse, scale, shift, epsilon};
  const Kept kept = {gamma, beta, running_mean, running_variance, factor};
  BY_COLUMNS(norm, T, x, z, kept, terms, y, signs, relu);
})

template <typename T, int N>
__device__ void norm_slopes(const Maps& maps, const T* x, const T* dy, T* dz,
                            const unsigned char* signs, const Terms& terms, const Slopes& slopes,
                            float* partials, int* arrived, int relu) {
  Part<N, 2> part(maps);
  EACH_PART(part) find_slopes(part, x, dy, dz, signs, terms, slopes, partials, arrived, relu);
}

TYPED_KERNEL(norm_slopes, (const T* x, const T* dy, T* dz, const unsigned char* signs, float* mean,
                           float* inverse, float* scale, float* shift, float* d_gamma,
                           float* d_beta, float* of_x, float* constant, float* partials,
                           int* arrived, int rows, int channels, int lanes, int slices, int relu), {
  const Maps maps = {rows, channels, lanes, slices};
  const Terms terms = {mean, inverse, scale, shift, 0};
  const Slopes slopes = {d_gamma, d_beta, of_x, constant};
  BY_COLUMNS(norm_slopes, T, x, dy, dz, signs, terms, slopes, partials, arrived, relu);
})

template <typename T, int N>
__device__ void normalise_back(const Maps& maps, const T* x, const T* dy, const float* scale,
                               const float* shift, const float* of_x, const float* constant, T* dx,
                               int relu) {
  Part<N, 2> part(maps);
  EACH_PART(part) apply_back(part, x, dy, scale, shift, of_x, constant, dx, relu);
}

TYPED_KERNEL(normalise_back, (const T* x, const T* dy, const float* scale, const float* shift,
                              const float* of_x, const float* constant, T* dx, int rows,
                              int channels, int lanes, int slices, int relu), {
  const Maps maps = {rows, channels, lanes, slices};
  BY_COLUMNS(normalise_back, T, x, dy, scale, shift, of_x, constant, dx, relu);
})

// Slopes and dx at once, where a slice is all rows.
template <typename T, int N>
__device__ void norm_back(const Maps& maps, const T* x, const T* dy, T* dz,
                          const unsigned char* signs, const Terms& terms, const Slopes& slopes,
                          T* dx, int relu) {
  Part<N, 2> part(maps);
  part.slices = 1;
  EACH_PART(part) {
    find_slopes(part, x, dy, dz, signs, terms, slopes, (float*)0, (int*)0, relu);
    __syncthreads();
    apply_back(part, x, dz ? dz : dy, terms.scale, terms.shift, slopes.of_x, slopes.constant, dx,
               dz ? 0 : relu);
  }
}

TYPED_KERNEL(norm_back, (const T* x, const T* dy, T* dz, const unsigned char* signs, float* mean,
                         float* inverse, float* scale, float* shift, float* d_gamma, float* d_beta,
                         float* of_x, float* constant, T* dx, int rows, int channels, int lanes,
                         int slices, int relu), {
  const Maps maps = {rows, channels, lanes, slices};
  const Terms terms = {mean, inverse, scale, shift, 0};
  const Slopes slopes = {d_gamma, d_beta, of_x, constant};
  BY_COLUMNS(norm_back, T, x, dy, dz, signs, terms, slopes, dx, relu);
})

#endif
