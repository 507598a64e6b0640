// One optimizer step of many tensors as one operator of MXNet's engine (lib_api.h, version 11).
//
//   v <- momentum v + lr trust (rescale g + decay w);  w <- w - v
//   trust = eta |w| / (rescale |g| + trust_decay |w| + epsilon), 1 where eta or a norm is 0
//   epsilon_only_below (NNabla): epsilon is added to a smaller denominator only, and trust is 1
//   where |w| is 0 or below epsilon, not where |g| is 0
//
// Inputs w0 g0 v0 w1 g1 v1 ... (float32, dense), w and v changed in place; output: the trust ratios.
// A tensor's norms and its update follow each other, so that most tensors are still in cache for the
// second pass: MXNet's own operators pass over all norms first and are bound by memory.
// Sums run in blocks of fixed size, in double between blocks, so they do not depend on threads.
#include <mxnet/lib_api.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

using namespace mxnet::ext;

namespace {

using Attributes = std::unordered_map<std::string, std::string>;
constexpr int64_t kBlock = 4096;
constexpr int64_t kParallelFrom = 1 << 16;  // elements; below, a thread costs more than it saves
#define VECTORISED __attribute__((optimize("O3,fast-math"), target_clones("avx512f", "avx2", "default")))

float number(const Attributes& a, const char* key) { return std::strtof(a.at(key).c_str(), nullptr); }

std::vector<float> numbers(const Attributes& a, const char* key) {
  std::vector<float> values;
  const char* text = a.at(key).c_str();
  for (char* end; *text != '\0'; text = *end == ',' ? end + 1 : end) {
    values.push_back(std::strtof(text, &end));
    if (end == text) break;
  }
  return values;
}

VECTORISED float block_sum_of_squares(const float* x, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

double norm(const float* x, int64_t n) {
  const int64_t blocks = (n + kBlock - 1) / kBlock;
  std::vector<float> sums(blocks);
#pragma omp parallel for if (n >= kParallelFrom)
  for (int64_t b = 0; b < blocks; ++b)
    sums[b] = block_sum_of_squares(x + b * kBlock, std::min(kBlock, n - b * kBlock));
  double sum = 0;
  for (float s : sums) sum += s;
  return std::sqrt(sum);
}

VECTORISED void update_block(float* w, const float* g, float* v, int64_t n, float momentum,
                             float scale_gradient, float scale_weight) {
  for (int64_t i = 0; i < n; ++i) {
    v[i] = momentum * v[i] + (scale_gradient * g[i] + scale_weight * w[i]);
    w[i] -= v[i];
  }
}

MXReturnValue parse(const Attributes& a, int* inputs, int* outputs) {
  if (a.count("tensors") == 0) {
    MX_ERROR_MSG << "rn50_update: attribute tensors missing";
    return MX_FAIL;
  }
  *inputs = 3 * std::atoi(a.at("tensors").c_str());
  *outputs = 1;
  return MX_SUCCESS;
}

MXReturnValue types(const Attributes&, std::vector<int>* in, std::vector<int>* out) {
  for (int type : *in) {
    if (type != kFloat32) {
      MX_ERROR_MSG << "rn50_update: float32 expected";
      return MX_FAIL;
    }
  }
  (*out)[0] = kFloat32;
  return MX_SUCCESS;
}

MXReturnValue shapes(const Attributes&, std::vector<std::vector<unsigned int>>* in,
                     std::vector<std::vector<unsigned int>>* out) {
  for (size_t i = 0; i < in->size(); ++i) {
    if ((*in)[i] != (*in)[i - i % 3]) {
      MX_ERROR_MSG << "rn50_update: weight, gradient and velocity of one shape expected";
      return MX_FAIL;
    }
  }
  (*out)[0] = {static_cast<unsigned int>(in->size() / 3)};
  return MX_SUCCESS;
}

MXReturnValue mutated(const Attributes& a, std::vector<int>* indices) {
  for (int t = 0; t < std::atoi(a.at("tensors").c_str()); ++t) {
    indices->push_back(3 * t);
    indices->push_back(3 * t + 2);
  }
  return MX_SUCCESS;
}

MXReturnValue forward(const Attributes& a, std::vector<MXTensor>* in, std::vector<MXTensor>* out,
                      const OpResource&) {
  const float lr = number(a, "lr"), momentum = number(a, "momentum");
  const float rescale = number(a, "rescale"), epsilon = number(a, "epsilon");
  const std::vector<float> etas = numbers(a, "etas"), decays = numbers(a, "decays");
  const float trust_decay_factor = number(a, "trust_decay_factor");
  const bool only_below = number(a, "epsilon_only_below") != 0;
  const size_t tensors = in->size() / 3;
  if (etas.size() != tensors || decays.size() != tensors) {
    MX_ERROR_MSG << "rn50_update: an eta and a decay for each tensor expected";
    return MX_FAIL;
  }
  float* trusts = (*out)[0].data<float>();
  for (size_t t = 0; t < tensors; ++t) {
    float* w = (*in)[3 * t].data<float>();
    const float* g = (*in)[3 * t + 1].data<float>();
    float* v = (*in)[3 * t + 2].data<float>();
    const int64_t n = (*in)[3 * t].size();
    float trust = 1;
    if (etas[t] > 0) {
      const double norm_w = norm(w, n), norm_g = norm(g, n) * rescale;
      double denominator = norm_g + decays[t] * trust_decay_factor * norm_w;
      if (!only_below || denominator < epsilon) denominator += epsilon;
      if (norm_w > 0 && denominator > 0 && (only_below ? norm_w >= epsilon : norm_g > 0))
        trust = etas[t] * norm_w / denominator;
    }
    trusts[t] = trust;
    const float scale_gradient = lr * trust * rescale, scale_weight = lr * trust * decays[t];
#pragma omp parallel for if (n >= kParallelFrom)
    for (int64_t start = 0; start < n; start += kBlock)
      update_block(w + start, g + start, v + start, std::min(kBlock, n - start), momentum,
                   scale_gradient, scale_weight);
  }
  return MX_SUCCESS;
}

}  // namespace

REGISTER_OP(rn50_update)
    .setForward(forward, "cpu")
    .setParseAttrs(parse)
    .setInferType(types)
    .setInferShape(shapes)
    .setMutateInputs(mutated);

MXReturnValue initialize(int version) {
  if (version >= 10700) return MX_SUCCESS;
  MX_ERROR_MSG << "MXNet 1.7 or later expected, found " << version;
  return MX_FAIL;
}
