#include "train/runs/text_model.h"

#include <algorithm>

#include "autograd/random.h"
#include "data/sets/text.h"
#include "io/json_field.h"
#include "models/gpt_names.h"

namespace weft::train {

TextModel make_text_model(const Config& config) {
  manual_seed(config.seed);
  TextModel text = {config, std::make_unique<models::Gpt>(models::gpt_config(config.model))};
  text.model->to(find_precision(config.precision).parameters);
  return text;
}

TextModel load_text_model(const io::Path& path) {
  const io::Path step = find_checkpoint(path);
  const Checkpoint checkpoint = load_checkpoint(step, CheckpointParts::kModel);
  try {
    const Config config = config_from_json(io::field(checkpoint.state, "config"));
    WEFT_CHECK(is_of_text(config), "a run on images ({}); expected one on text", config.data);
    TextModel text = make_text_model(config);
    text.model->load_state_dict(checkpoint.model);
    return text;
  } catch (const nlohmann::json::exception& error) {
    WEFT_FAIL("{}: the state is not that of a training run: {}", step.string(), error.what());
  } catch (const Error& error) {
    WEFT_FAIL("{}: {}", step.string(), error.what());
  }
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
