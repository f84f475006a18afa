#include "models/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/philox.h"
#include "nn/meta.h"
#include "nn/modes.h"

namespace weft::models {
namespace {

void check(const GenerateOptions& options) {
  WEFT_CHECK(options.max_new_tokens >= 0, "generate: max_new_tokens must not be negative, got {}",
             options.max_new_tokens);
  WEFT_CHECK(options.temperature >= 0 && std::isfinite(options.temperature),
             "generate: temperature must be finite and not negative, got {}", options.temperature);
  WEFT_CHECK(options.top_k >= 0, "generate: top_k must not be negative, got {}", options.top_k);
  WEFT_CHECK(options.top_p > 0 && options.top_p <= 1, "generate: top_p must lie in (0, 1], got {}",
             options.top_p);
}

int64_t draw(const std::vector<double>& probabilities, Philox& random) {
  const double u = static_cast<double>(random.next_u64() >> 11) * 0x1p-53;  // [0, 1)
  double sum = 0;
  int64_t last = 0;  // the last one that may be drawn, should rounding leave the sum below u
  for (size_t i = 0; i < probabilities.size(); ++i) {
    if (probabilities[i] == 0) continue;
    last = static_cast<int64_t>(i);
    sum += probabilities[i];
    if (u < sum) break;
  }
  return last;
}

/// Whether the model runs as a whole alone, by model(tokens): its weights come and go or lie on
/// several devices (nn/dispatch.h), or its parts refuse to be called past a strategy or a precision
/// (train/fabric.h).
bool runs_as_a_whole(const Gpt& model) {
  if (!model.has_route() || nn::RoutedCall::is_of(model)) return false;
  try {
    model.wte.check_call();
  } catch (const Error&) {
    return true;
  }
  return std::ranges::any_of(model.parameters(), [&](const Tensor& parameter) {
    return !nn::has_memory(parameter) || parameter.device() != model.wte.weight.device();
  });
}

}  // namespace

std::vector<double> token_probabilities(const std::vector<double>& logits,
                                        const GenerateOptions& options) {
  check(options);
  WEFT_CHECK(!logits.empty(), "generate: no logits");
  for (size_t i = 0; i < logits.size(); ++i) {
    WEFT_CHECK(std::isfinite(logits[i]), "generate: the logit of token {} is {}", i, logits[i]);
  }
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](size_t i) { return logits[i]; });
  const bool is_greedy = options.temperature == 0;
  if (options.top_k > 0) order.resize(std::min<size_t>(order.size(), options.top_k));
  if (is_greedy) order.resize(1);

  std::vector<double> result(logits.size());
  double sum = 0;
  for (const size_t i : order) {
    result[i] = is_greedy ? 1 : std::exp((logits[i] - logits[order[0]]) / options.temperature);
    sum += result[i];
  }
  double kept = 0;
  for (const size_t i : order) {
    if (kept >= options.top_p * sum) result[i] = 0;
    kept += result[i];
  }
  for (double& p : result) p /= kept;
  return result;
}

std::vector<int64_t> generate(Gpt& model, const std::vector<int64_t>& prompt,
                              const GenerateOptions& options) {
  check(options);
  const auto length = static_cast<int64_t>(prompt.size()), context = model.config.context;
  WEFT_CHECK(length > 0, "generate: the prompt is empty");
  WEFT_CHECK(length <= context, "generate: the prompt of {} tokens exceeds the context of {}",
             length, context);
  WEFT_CHECK(options.max_new_tokens <= context - length,
             "generate: a prompt of {} tokens and {} new ones exceed the context of {}", length,
             options.max_new_tokens, context);
  constexpr uint64_t kStream = uint64_t{0x67656e65} << 32;  // "gene", apart from all other streams
  Philox random(options.seed, kStream);
  const nn::EvalScope evaluating(model);
  const NoGrad guard;
  const Device device = model.wte.weight.device();
  const bool sees_all_again = runs_as_a_whole(model);
  KvCache cache;
  if (!sees_all_again) cache = model.make_cache();
  std::vector<int64_t> result, next = prompt;
  while (static_cast<int64_t>(result.size()) < options.max_new_tokens) {
    const auto count = static_cast<int64_t>(next.size());
    const Tensor tokens = ops::to(Tensor::from(next, {1, count}), device);
    const Tensor logits = sees_all_again ? model(tokens) : model.forward(tokens, cache);
    const Tensor last = ops::select(ops::select(logits, 0, 0), 0, count - 1);
    const int64_t token = draw(token_probabilities(last.to_vector(), options), random);
    result.push_back(token);
    if (!sees_all_again) next.clear();
    next.push_back(token);
  }
  return result;
}

}  // namespace weft::models
