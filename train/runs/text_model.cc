#include "train/runs/text_model.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "autograd/ops.h"
#include "autograd/random.h"
#include "data/sets/text.h"
#include "io/json_field.h"
#include "models/gpt_names.h"
#include "models/gpt_options.h"
#include "nn/loss.h"
#include "train/pretrained/gpt2.h"

namespace weft::train {

namespace {

TextModel fresh(const Config& config, models::GptConfig gpt) {
  manual_seed(config.seed);
  gpt.checkpoint_activations = config.checkpoint_activations;
  TextModel text{.config = config, .model = std::make_unique<models::Gpt>(gpt)};
  text.model->to(find_precision(config.precision).parameters);
  return text;
}

/// GPT-2's tokens of single bytes, by the byte: its first 256 are the bytes that print, in Latin-1,
/// and then the others (bytes_to_unicode() of its encoder.py).
std::vector<int64_t> byte_tokens() {
  constexpr int kBytes = 256;
  const auto prints = [](int byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xff && byte != 0xad);
  };
  std::vector<int64_t> tokens(kBytes);
  int64_t next = 0;
  for (const bool printed : {true, false}) {
    for (int byte = 0; byte < kBytes; ++byte) {
      if (prints(byte) == printed) tokens[byte] = next++;
    }
  }
  return tokens;
}

/// Leaves a GPT-2 the tokens of bytes. Returns what was done, if anything.
std::vector<std::string> keep_byte_tokens(Pretrained& weights) {
  const std::vector<int64_t> tokens = byte_tokens();
  const int64_t vocabulary = gpt2_config_of(weights).vocabulary, bytes = std::ssize(tokens);
  if (vocabulary == bytes) return {};
  const int64_t published = models::GptConfig::gpt2().vocabulary;
  WEFT_CHECK(vocabulary == published,
             "{}: a GPT-2 of {} tokens; expected {}, one of each byte, or the {} of its tokeniser",
             weights.file.path.string(), vocabulary, bytes, published);
  const Tensor rows = Tensor::from(tokens, {bytes});
  for (auto& [name, tensor] : weights.state) {
    if (name == "wte.weight" || name == "lm_head.weight") {
      tensor = ops::index_select(tensor, 0, rows);
    }
  }
  return {fmt::format("of {} tokens those of the {} bytes are kept", vocabulary, bytes)};
}

TextModel with_weights(const Config& config, Pretrained weights) {
  const bool is_gpt2 = recognise_gpt2(weights.state);
  WEFT_CHECK(!weights.names && is_gpt2 == (config.model == kGpt2),
             "{}: {}; expected those of model {}", weights.file.path.string(),
             weights.names ? "the weights of a vision transformer"
             : is_gpt2     ? "the weights of a GPT-2, which is model gpt2"
                           : "the keys are not those of a GPT-2",
             config.model);
  std::vector<std::string> notes;
  if (is_gpt2) notes = keep_byte_tokens(weights);
  TextModel text =
      fresh(config, is_gpt2 ? gpt2_config_of(weights) : models::gpt_config(config.model));
  load_pretrained(*text.model, weights);
  text.notes = std::move(notes);
  return text;
}

bool has_shapes_of(const NamedTensors& state, const NamedTensors& other) {
  const auto shapes = [](const NamedTensors& tensors) {
    std::map<std::string, Shape> shapes;
    for (const auto& [name, tensor] : tensors) shapes.emplace(name, tensor.shape());
    return shapes;
  };
  return shapes(state) == shapes(other);
}

/// What read(checkpoint, its directory) returns; errors get the directory's name.
template <class Read>
auto from_checkpoint(const io::Path& path, CheckpointParts parts, const Read& read) {
  const io::Path step = find_checkpoint(path);
  const Checkpoint checkpoint = load_checkpoint(step, parts);
  try {
    return read(checkpoint, config_from_json(io::field(checkpoint.state, "config")));
  } catch (const nlohmann::json::exception& error) {
    WEFT_FAIL("{}: the state is not that of a training run: {}", step.string(), error.what());
  } catch (const Error& error) {
    WEFT_FAIL("{}: {}", step.string(), error.what());
  }
}

}  // namespace

TextModel make_text_model(const Config& config) {
  if (config.weights.empty()) return fresh(config, models::gpt_config(config.model));
  return with_weights(config, read_pretrained(config.weights));
}

TextModel remake_text_model(const Config& config, const nlohmann::json& state) {
  if (config.model != kGpt2) return fresh(config, models::gpt_config(config.model));
  models::GptConfig gpt = models::GptConfig::gpt2();
  const nlohmann::json& sizes = io::object_field(state, kGpt2);
  models::for_each_option(models::gpt_sizes(), gpt, [&](const std::string& key, auto& size) {
    // Older checkpoints know nothing of it: it was GPT-2's.
    if (key != "dropout" || sizes.contains(key)) io::read_field(sizes, key, size);
  });
  return fresh(config, gpt);
}

nlohmann::json describe(const TextModel& text) {
  nlohmann::json state = nlohmann::json::object();
  if (text.config.model != kGpt2) return state;
  models::for_each_option(models::gpt_sizes(), text.model->config,
                          [&](const char* key, const auto& size) { state[kGpt2][key] = size; });
  return state;
}

TextModel load_text_model(const io::Path& path) {
  return from_checkpoint(
      path, CheckpointParts::kModel, [](const Checkpoint& checkpoint, const Config& config) {
        WEFT_CHECK(is_of_text(config), "a run on images ({}); expected one on text", config.data);
        TextModel text = remake_text_model(config, checkpoint.state);
        text.model->load_state_dict(checkpoint.model);
        return text;
      });
}

TextModel load_text_weights(const io::Path& path) {
  Config config;
  config.weights = path.string();
  Pretrained weights = read_pretrained(path);
  config.model = kGpt2;
  for (const std::string& name : models::gpt_names()) {
    const models::Gpt known(models::gpt_config(name));
    if (has_shapes_of(weights.state, known.state_dict())) config.model = name;
  }
  return with_weights(config, std::move(weights));
}

bool is_run_on_text(const io::Path& path) {
  return from_checkpoint(
      path, CheckpointParts::kState,
      [](const Checkpoint&, const Config& config) { return is_of_text(config); });
}

double evaluate_text(TextModel& text, const data::WindowDataset& windows, int64_t begin,
                     int64_t end, int64_t batch,
                     const std::function<void(int64_t, double)>& progress) {
  const NoGrad guard;
  Fp8Scaling fp8;
  const PrecisionScope scope = enter_precision(text.config, fp8);
  const Precision& precision = find_precision(text.config.precision);
  const Device device = text.model->wte.weight.device();
  text.model->eval();
  double sum = 0;
  for (int64_t first = begin; first < end; first += batch) {
    std::vector<int64_t> numbers(std::min(batch, end - first));
    std::iota(numbers.begin(), numbers.end(), first);
    const Tensors rows = windows.batch(numbers);
    const Tensor logits = forward_logits([&](const Tensor& x) { return (*text.model)(x); },
                                         ops::to(rows[0], device), precision);
    const Tensor loss =
        nn::cross_entropy(ops::flatten(logits, 0, 1), ops::to(ops::flatten(rows[1]), device));
    sum += loss.item() * static_cast<double>(numbers.size());
    const int64_t done = first + std::ssize(numbers) - begin;
    if (progress) progress(done, sum / static_cast<double>(done));
  }
  return sum / static_cast<double>(end - begin);
}

std::string continue_text(TextModel& text, const std::string& prompt, int64_t bytes,
                          models::GenerateOptions options) {
  Fp8Scaling fp8;
  const PrecisionScope scope = enter_precision(text.config, fp8);
  const int64_t context = text.model->config.context;
  std::vector<int64_t> tokens = data::tokens_of(prompt);
  const auto end = static_cast<int64_t>(tokens.size()) + bytes;
  for (auto size = static_cast<int64_t>(tokens.size()); size < end;
       size = static_cast<int64_t>(tokens.size())) {
    const int64_t seen = size + 1 < context ? size : context / 2;
    options.max_new_tokens = std::min(end - size, context - seen);
    const std::vector<int64_t> more =
        models::generate(*text.model, {tokens.end() - seen, tokens.end()}, options);
    tokens.insert(tokens.end(), more.begin(), more.end());
    ++options.seed;  // other random numbers than before
  }
  return data::text_of(std::span(tokens).subspan(prompt.size()));
}

}  // namespace weft::train
