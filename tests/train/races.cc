// Every kernel that sums over a block, once, on several blocks, against sums in double. Behind the text
// of emulated.py's `wrapper`, built with -fsanitize=thread: 1 where a number is wrong.
#include <cstdio>

namespace {

constexpr int kImages = 5, kClasses = 150, kThreads = 64;
constexpr float kOther = 0.001f;

double value(int i) { return ((i * 7919) % 1000) / 250.0 - 2; }

template <class T>
std::vector<T> values(int size) {
  std::vector<T> made(size);
  for (int i = 0; i < size; ++i) made[i] = T(value(i));
  return made;
}

bool wrong(const char* name, double found, double expected, double tolerance) {
  if (std::abs(found - expected) <= tolerance * std::max(1.0, std::abs(expected))) return false;
  std::printf("%s: %g found, %g expected\n", name, found, expected);
  return true;
}

template <typename... P, typename... A>
void run(void (*kernel)(P...), int blocks, A... arguments) {
  void* places[] = {&arguments...};
  emulate(kernel, blocks, kThreads, places);
}

// The words that change with each step.
struct Now {
  long long words[8] = {};
  void set(int word, const void* place) { words[word] = reinterpret_cast<long long>(place); }
  void set(int word, float number) { std::memcpy(words + word, &number, sizeof number); }
};

template <class T>
bool losses_are_wrong(void (*kernel)(const T*, const long long*, T*, int, float)) {
  const auto logits = values<T>(kImages * kClasses);
  const std::vector<float> labels{0, 149, 7, 7, 20};
  std::vector<float> losses(kImages), sum(1);
  std::vector<T> gradient(logits.size());
  Now now;
  now.set(LABELS, labels.data());
  now.set(LOSSES, losses.data());
  now.set(SCALE, 1.0f);
  run(kernel, kImages, logits.data(), now.words, gradient.data(), kClasses, kOther);
  run(sum_losses, 1, losses.data(), sum.data(), kImages);
  run(add_losses, 1, now.words, sum.data(), kImages);
  double expected = 0, slopes = 0, found_slopes = 0;
  for (int image = 0; image < kImages; ++image) {
    double exponentials = 0;
    for (int c = 0; c < kClasses; ++c) exponentials += std::exp(double(logits[image * kClasses + c]));
    for (int c = 0; c < kClasses; ++c) {
      const int i = image * kClasses + c;
      const double logarithm = double(logits[i]) - std::log(exponentials);
      const double target = kOther + (c == labels[image] ? 1 - kOther * kClasses : 0);
      expected -= target * logarithm;
      slopes += std::abs(std::exp(logarithm) - target);
      found_slopes += std::abs(double(gradient[i]));
    }
  }
  return wrong("losses", sum[0], 2 * expected, 1e-4) | wrong("slopes", found_slopes, slopes, 1e-2);
}

template <class T>
bool hits_are_wrong(void (*kernel)(const T*, const float*, int*, int, int)) {
  const auto scores = values<T>(kImages * kClasses);
  const std::vector<float> labels{0, 149, -1, 7, 20};
  int counts[3] = {}, expected[3] = {};
  run(kernel, kImages, scores.data(), labels.data(), counts, kClasses, 40);
  for (int image = 0; image < kImages; ++image) {
    const int label = int(labels[image]);
    if (label < 0) continue;
    int above = 0;
    for (int c = 0; c < kClasses; ++c) {
      const double score = scores[image * kClasses + c], mine = scores[image * kClasses + label];
      above += score > mine || (score == mine && c < label);
    }
    expected[0] += above < 1;
    expected[1] += above < 40;
    expected[2] += 1;
  }
  bool any = false;
  for (int i = 0; i < 3; ++i) any |= wrong("hits", counts[i], expected[i], 0);
  return any;
}

bool rates_are_wrong() {
  constexpr int kSize = 20000, kChunks = (kSize + CHUNK - 1) / CHUNK;
  auto weight = values<float>(kSize), gradient = values<float>(kSize + 1);
  std::vector<float> velocity(kSize), sums(2 * kChunks), found(2);
  const Tensor tensor{weight.data(), gradient.data() + 1, velocity.data(), nullptr, nullptr, kSize, 0, 0};
  std::vector<int> chunks(kChunks);
  const auto* table = reinterpret_cast<const long long*>(&tensor);
  const float eta = 0.5f, decay = 0.25f;
  run(square_sums, kChunks, table, chunks.data(), sums.data());
  Now now;
  now.set(LR, 2.0f);
  now.set(RESCALE, 1.0f);
  run(rates, 1, table, &eta, &decay, sums.data(), found.data(), now.words, 1, 1, 0.0f, 1.0f, 0);
  double squares_w = 0, squares_g = 0;
  for (int i = 0; i < kSize; ++i) {
    squares_w += value(i) * value(i);
    squares_g += value(i + 1) * value(i + 1);
  }
  const double w = std::sqrt(squares_w);
  const double expected = 2 * eta * w / (std::sqrt(squares_g) + decay * w);
  return wrong("rate", found[0], expected, 1e-4) | wrong("finite", found[1], 1, 0);
}

// Of all the gradients of a norm, its slices' sums in several blocks; then the same in one launch.
template <class T, class Terms, class Slopes, class Both, class BothBack>
bool norms_are_wrong(Terms terms, Slopes slopes, Both both, BothBack both_back) {
  constexpr int kRows = 300, kChannels = 16, kSlices = 3;
  const auto x = values<T>(kRows * kChannels), dy = values<T>(kRows * kChannels + 8);
  std::vector<float> gamma(kChannels, 2), beta(kChannels, 8), partials(2 * kSlices * kChannels);
  std::vector<float> running(2 * kChannels), found(8 * kChannels);
  std::vector<int> arrived(kChannels);
  std::vector<T> y(x.size()), dx(x.size());
  float* of[8];
  for (int i = 0; i < 8; ++i) of[i] = found.data() + i * kChannels;
  T* none = nullptr;
  unsigned char* no_signs = nullptr;
  double expected[2] = {}, slope[2] = {};
  double mean = 0;
  for (int row = 0; row < kRows; ++row) mean += x[row * kChannels] / double(kRows);
  for (int row = 0; row < kRows; ++row) {
    const double away = x[row * kChannels] - mean, d = dy[row * kChannels + 8];
    expected[0] += away * away / kRows;
    slope[0] += d;
    slope[1] += d * away;
  }
  slope[1] /= std::sqrt(expected[0]);
  bool any = false;
  const auto check = [&] {
    any |= wrong("mean", of[0][0], mean, 1e-3);
    any |= wrong("inverse", of[1][0], 1 / std::sqrt(expected[0]), 1e-3);
    any |= wrong("d_gamma", of[4][0], slope[1], 1e-3);
    any |= wrong("d_beta", of[5][0], slope[0], 1e-3);
    std::fill(found.begin(), found.end(), 0.0f);
  };
  float *running_mean = running.data(), *running_variance = running_mean + kChannels;
  run(terms, 2, x.data(), gamma.data(), beta.data(), running_mean, running_variance, of[0], of[1], of[2],
      of[3], partials.data(), arrived.data(), kRows, kChannels, 8, kSlices, 1.0f, 0.0f);
  run(slopes, 2, x.data(), dy.data() + 8, none, no_signs, of[0], of[1], of[2], of[3], of[4], of[5], of[6],
      of[7], partials.data(), arrived.data(), kRows, kChannels, 8, kSlices, 0);
  check();
  run(both, 2, x.data(), none, gamma.data(), beta.data(), running_mean, running_variance, of[0], of[1],
      of[2], of[3], y.data(), no_signs, kRows, kChannels, 1, 1, 1.0f, 0.0f, 0);
  run(both_back, 2, x.data(), dy.data() + 8, none, no_signs, of[0], of[1], of[2], of[3], of[4], of[5],
      of[6], of[7], dx.data(), kRows, kChannels, 1, 1, 0);
  check();
  return any;
}

}  // namespace

int main() {
  bool any = losses_are_wrong(loss_half) | losses_are_wrong(loss_float);
  any |= hits_are_wrong(hits_half) | hits_are_wrong(hits_float);
  any |= norms_are_wrong<half_t>(norm_terms_half, norm_slopes_half, norm_half, norm_back_half);
  any |= norms_are_wrong<float>(norm_terms_float, norm_slopes_float, norm_float, norm_back_float);
  return any | rates_are_wrong();
}
