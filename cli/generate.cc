// weft generate: text from a language model that weft train has trained.
#include <fmt/format.h>

#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/json_line.h"
#include "core/parallel.h"
#include "train/runs/text_model.h"

namespace weft::cli {
namespace {

struct Arguments {
  std::string run, prompt = "the ", device;
  int64_t bytes = 200;
  models::GenerateOptions options;
  int threads = 0;
  bool json = false;
};

int run_generate(const Arguments& a) {
  check_usage(!a.prompt.empty(), "--prompt: is empty; expected a byte or more");
  if (a.threads > 0) set_num_threads(a.threads);
  const Device device = chosen_device(a.device);
  train::TextModel text = train::load_text_model(a.run);
  text.model->to(device);
  const std::string more = train::continue_text(text, a.prompt, a.bytes, a.options);
  if (a.json) {
    print_json({{"prompt", a.prompt}, {"text", more}});
  } else {
    fmt::print("{}{}\n", a.prompt, more);
  }
  return 0;
}

}  // namespace

void add_generate(Command& app, Action& action) {
  const auto [command, a] =
      add_command<Arguments>(app, action, run_generate, "generate",
                             "Write text with a trained language model", kTrainingCommands);
  command.group("Model and text");
  command.option("RUN", a.run, "The model: a run's directory, or one of its checkpoints",
                 {.takes = "DIR", .required = true});
  command.option("--prompt", a.prompt, "Text that the model goes on with", {.takes = "TEXT"});
  command.option("--bytes", a.bytes, "Bytes to write", {.check = non_negative()});
  command.group("Sampling");
  command.option("--temperature", a.options.temperature,
                 "Divisor of the logits; 0: always the most probable byte",
                 {.check = non_negative()});
  command.option("--top-k", a.options.top_k,
                 "Draw from this many of the most probable bytes; 0: from all",
                 {.check = non_negative()});
  command.option("--top-p", a.options.top_p,
                 "Draw from the fewest bytes that have this probability together",
                 {.check = in_range(0.0, 1.0)});
  command.option("--seed", a.options.seed, "Seed of what is drawn", {.check = non_negative()});
  command.group("Device");
  add_device_option(command, a.device);
  add_threads_option(command, a.threads);
  command.group("Output");
  command.flag("--json", a.json, kJsonObject);
}

}  // namespace weft::cli
