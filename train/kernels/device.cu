// The kernels of a training step beside cuDNN's: loss, norms, update, counts, casts. `own.py` launches
// them. NVRTC compiles this text for the GPU that is there, so it needs no machine code of MXNet's
// wheel; a C++ compiler takes it too, with emulated threads (tests/train/emulated.h).
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
#define CHUNK 16384  // elements of a tensor that one block takes (own.py)

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

__device__ bool is_finite(float x) { return fabsf(x) <= 3.402823466e38f; }

// --- loss ---------------------------------------------------------------------------------------

// Cross-entropy of one image a block, L = -(1 - K other) log p_label - other sum log p, and
// scale dL/dlogits = scale (p - (1 - K other) [label] - other). `other`: the smoothed target of each
// class that is not the label's.
template <typename T>
__device__ void cross_entropy(const T* logits, const float* labels, float* losses, T* gradient,
                              int classes, float other, float scale) {
  const long long row = (long long)blockIdx.x * classes;
  const int label = (int)labels[blockIdx.x];
  const float true_minus_other = 1 - other * classes;
  float largest = -3.402823466e38f;
  for (int i = threadIdx.x; i < classes; i += blockDim.x)
    largest = fmaxf(largest, to_float(logits[row + i]));
  largest = block_max(largest);
  float exponentials = 0, shifted = 0;
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
    losses[blockIdx.x] = -(true_minus_other * log_p + other * (shifted - classes * log_sum));
  }
}

KERNEL loss_half(const half_t* logits, const float* labels, float* losses, half_t* gradient,
                 int classes, float other, float scale) {
  cross_entropy(logits, labels, losses, gradient, classes, other, scale);
}

KERNEL loss_float(const float* logits, const float* labels, float* losses, float* gradient,
                  int classes, float other, float scale) {
  cross_entropy(logits, labels, losses, gradient, classes, other, scale);
}

// One block: sum += the losses of a batch; `first`: sum = them.
KERNEL add_losses(const float* losses, float* sum, int images, int first) {
  float mine = 0;
  for (int i = threadIdx.x; i < images; i += blockDim.x) mine += losses[i];
  mine = block_sum(mine);
  if (threadIdx.x == 0) sum[0] = first ? mine : sum[0] + mine;
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

// A row of the table of tensors (own.py): addresses, elements, first of its chunks.
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
  const Tensor& t = ((const Tensor*)tensors)[c.tensor];
  c.begin = (blockIdx.x - t.first_chunk) * CHUNK;
  c.end = c.begin + CHUNK < t.size ? c.begin + CHUNK : t.size;
  return c;
}

// Sums of squares of weights and gradients, by chunk.
KERNEL square_sums(const long long* tensors, const int* chunks, float* sums) {
  const Chunk c = chunk_of(tensors, chunks);
  const Tensor& t = ((const Tensor*)tensors)[c.tensor];
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
             float* rates, int count, int guarded, float lr, float rescale, float epsilon,
             float decay_factor, int epsilon_only_below) {
  float infinite = 0;
  for (int n = threadIdx.x; n < count; n += blockDim.x) {
    const Tensor& t = ((const Tensor*)tensors)[n];
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
              int count, float momentum, float rescale) {
  const Chunk c = chunk_of(tensors, chunks);
  const Tensor& t = ((const Tensor*)tensors)[c.tensor];
  const float rate = rates[c.tensor], decay = decays[c.tensor];
  const bool finite = rates[count] > 0;
  for (long long i = c.begin + threadIdx.x; i < c.end; i += blockDim.x) {
    const float w = t.value(i);
    const float change = finite ? rate * (rescale * t.slope(i) + decay * w) : 0;
    t.velocity[i] = momentum * t.velocity[i] - change;
    t.set(i, w + t.velocity[i]);
  }
}

// Akiba et al. (1711.04325), see optimizer.py: `sgd` and `rms` are the shares of the two rules.
KERNEL update_rmsprop(const long long* tensors, const int* chunks, const float* decays,
                      const float* rates, int count, float momentum, float rescale, float lr,
                      float sgd, float rms, float keep, float epsilon) {
  const Chunk c = chunk_of(tensors, chunks);
  const Tensor& t = ((const Tensor*)tensors)[c.tensor];
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

// A weight (out, height x width, in) as (out, in, height x width).
template <typename T>
__device__ void move_channels(const T* from, T* to, int out, int area, int in) {
  EACH(i, out * area * in) {
    const int place = i % area, channel = i / area % in, filter = i / area / in;
    to[i] = from[(filter * area + place) * in + channel];
  }
}

KERNEL channels_first_half(const half_t* from, half_t* to, int out, int area, int in) {
  move_channels(from, to, out, area, in);
}

KERNEL channels_first_float(const float* from, float* to, int out, int area, int in) {
  move_channels(from, to, out, area, in);
}
