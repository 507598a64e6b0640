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
#endif
__device__ float to_float(float x) { return x; }
__device__ void store(float* to, float x) { *to = x; }
__device__ void store(half_t* to, float x) { *to = to_half(x); }

#define KERNEL extern "C" __global__ void
#define THREADS 256  // of every block, at most; a power of two
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
#define IMAGES 0  // of a step (plan.py)
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

// Cross-entropy of one image a block, L = -(1 - K other) log p_label - other sum log p, and
// scale dL/dlogits = scale (p - (1 - K other) [label] - other). `other`: the smoothed target of each
// class that is not the label's.
template <typename T>
__device__ void cross_entropy(const T* logits, const long long* now, T* gradient, int classes,
                              float other) {
  const long long row = (long long)blockIdx.x * classes;
  const int label = (int)((const float*)now[LABELS])[blockIdx.x];
  const float scale = number(now, SCALE);
  const float true_minus_other = 1 - other * classes;
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
    store(&gradient[row + i], scale * (p - other - (i == label ? true_minus_other : 0)));
  }
  if (threadIdx.x == 0) {
    const float log_sum = logf(exponentials);
    const float log_p = to_float(logits[row + label]) - largest - log_sum;
    const float loss = -(true_minus_other * log_p + other * (shifted - classes * log_sum));
    ((float*)now[LOSSES])[blockIdx.x] = loss;
  }
}

KERNEL loss_half(const half_t* logits, const long long* now, half_t* gradient, int classes,
                 float other) {
  cross_entropy(logits, now, gradient, classes, other);
}

KERNEL loss_float(const float* logits, const long long* now, float* gradient, int classes,
                  float other) {
  cross_entropy(logits, now, gradient, classes, other);
}

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
  const float own = to_float(scores[row + label]);
  float above = 0;
  for (int i = threadIdx.x; i < classes; i += blockDim.x) {
    const float x = to_float(scores[row + i]);
    if (i != label && !(x < own) && !(x == own && i > label)) above += 1;
  }
  above = block_sum(above);
  if (threadIdx.x == 0) {
    if (above < 1) atomicAdd(&counts[0], 1);
    if (above < top) atomicAdd(&counts[1], 1);
    atomicAdd(&counts[2], 1);
  }
}

KERNEL hits_half(const half_t* scores, const float* labels, int* counts, int classes, int top) {
  count(scores, labels, counts, classes, top);
}

KERNEL hits_float(const float* scores, const float* labels, int* counts, int classes, int top) {
  count(scores, labels, counts, classes, top);
}

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

KERNEL fill_half(half_t* array, int size, float value) {
  EACH(i, size) store(&array[i], value);
}

KERNEL fill_float(float* array, int size, float value) {
  EACH(i, size) array[i] = value;
}

KERNEL scale(float* array, int size, float factor) {
  EACH(i, size) array[i] *= factor;
}

KERNEL narrow(const float* from, half_t* to, int size, float factor) {
  EACH(i, size) to[i] = to_half(factor * from[i]);
}

KERNEL widen(const half_t* from, float* to, int size, float factor) {
  EACH(i, size) to[i] = factor * to_float(from[i]);
}

// array += sign other^2: variances to mean squares (1) and back (-1).
KERNEL add_square(float* array, const float* other, int size, float sign) {
  EACH(i, size) array[i] += sign * other[i] * other[i];
}

// --- layers --------------------------------------------------------------------------------------

// Images of three channels in float32 become (image, pixel, 4), the fourth 0: cuDNN's kernels for
// tensor cores take channels by four. The strides are those of the source.
template <typename T>
__device__ void pad_images(const long long* now, T* to, int pixels, int area, int pixel_stride,
                           int channel_stride) {
  const float* images = (const float*)now[IMAGES];
  EACH(i, pixels) {
    const float* from = images + i / area * 3 * area + i % area * pixel_stride;
    for (int channel = 0; channel < 3; ++channel)
      store(&to[4 * i + channel], from[(long long)channel * channel_stride]);
    store(&to[4 * i + 3], 0.0f);
  }
}

KERNEL images_half(const long long* now, half_t* to, int pixels, int area, int pixel_stride,
                   int channel_stride) {
  pad_images(now, to, pixels, area, pixel_stride, channel_stride);
}

KERNEL images_float(const long long* now, float* to, int pixels, int area, int pixel_stride,
                    int channel_stride) {
  pad_images(now, to, pixels, area, pixel_stride, channel_stride);
}

// Rows of a number of channels as rows of more, with zeros, or of fewer.
template <typename T>
__device__ void change_channels(const T* from, T* to, int size, int from_channels,
                                int to_channels) {
  EACH(i, size) {
    const int channel = i % to_channels;
    if (channel < from_channels)
      to[i] = from[i / to_channels * from_channels + channel];
    else
      store(&to[i], 0.0f);
  }
}

KERNEL channels_half(const half_t* from, half_t* to, int size, int from_channels, int to_channels) {
  change_channels(from, to, size, from_channels, to_channels);
}

KERNEL channels_float(const float* from, float* to, int size, int from_channels, int to_channels) {
  change_channels(from, to, size, from_channels, to_channels);
}

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

KERNEL max_pool_half(const half_t* x, half_t* y, unsigned char* places, int size, int height,
                     int width, int channels) {
  max_pool(x, y, places, size, height, width, channels);
}

KERNEL max_pool_float(const float* x, float* y, unsigned char* places, int size, int height,
                      int width, int channels) {
  max_pool(x, y, places, size, height, width, channels);
}

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

KERNEL max_pool_back_half(const half_t* dy, const unsigned char* places, half_t* dx, int size,
                          int height, int width, int channels) {
  max_pool_back(dy, places, dx, size, height, width, channels);
}

KERNEL max_pool_back_float(const float* dy, const unsigned char* places, float* dx, int size,
                           int height, int width, int channels) {
  max_pool_back(dy, places, dx, size, height, width, channels);
}

__device__ float positive(float x) { return x <= 0 ? 0 : x; }  // what is no number remains so

// y <- ReLU(y + z), where cuDNN's batch norm does not do it; without z: ReLU(y).
template <typename T>
__device__ void rectify(T* y, const T* z, int size) {
  EACH(i, size) store(&y[i], positive(to_float(y[i]) + (z ? to_float(z[i]) : 0.0f)));
}

KERNEL rectify_half(half_t* y, const half_t* z, int size) { rectify(y, z, size); }

KERNEL rectify_float(float* y, const float* z, int size) { rectify(y, z, size); }

// Its gradient: dy <- 0 where y is 0.
template <typename T>
__device__ void mask(const T* y, T* dy, int size) {
  EACH(i, size) if (to_float(y[i]) <= 0) store(&dy[i], 0.0f);
}

KERNEL mask_half(const half_t* y, half_t* dy, int size) { mask(y, dy, size); }

KERNEL mask_float(const float* y, float* dy, int size) { mask(y, dy, size); }

// Batch norm by its running statistics, with the sum and the ReLU that follow it.
template <typename T>
__device__ void normalise(const T* x, const T* z, const float* gamma, const float* beta,
                          const float* mean, const float* variance, T* y, int size, int channels,
                          float epsilon, int relu) {
  EACH(i, size) {
    const int channel = i % channels;
    const float scale = gamma[channel] / sqrtf(variance[channel] + epsilon);
    float value = (to_float(x[i]) - mean[channel]) * scale + beta[channel];
    if (z) value += to_float(z[i]);
    store(&y[i], relu ? positive(value) : value);
  }
}

KERNEL normalise_half(const half_t* x, const half_t* z, const float* gamma, const float* beta,
                      const float* mean, const float* variance, half_t* y, int size, int channels,
                      float epsilon, int relu) {
  normalise(x, z, gamma, beta, mean, variance, y, size, channels, epsilon, relu);
}

KERNEL normalise_float(const float* x, const float* z, const float* gamma, const float* beta,
                       const float* mean, const float* variance, float* y, int size, int channels,
                       float epsilon, int relu) {
  normalise(x, z, gamma, beta, mean, variance, y, size, channels, epsilon, relu);
}
