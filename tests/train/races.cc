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

}  // namespace

int main() {
  bool any = losses_are_wrong(loss_half) | losses_are_wrong(loss_float);
  any |= hits_are_wrong(hits_half) | hits_are_wrong(hits_float);
  return any | rates_are_wrong();
}
