// weft consolidate RUN OUT: the weights of a checkpoint, of several files or of one, as one
// safetensors file, or as Hugging Face's several.
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "cli/command.h"
#include "io/checked_json.h"
#include "io/quote.h"
#include "io/safetensors_index.h"
#include "io/sharded_safetensors.h"
#include "nn/meta.h"
#include "train/checkpoint.h"
#include "train/trained_model.h"

namespace weft::cli {
namespace {

constexpr const char* kModel = "model";  // a run's

struct Arguments {
  std::string in, out, state, most;
};

/// Weights that are read when they are asked for.
struct Source {
  std::string description;
  std::vector<io::PendingTensor> tensors;
  std::function<Tensor(const std::string& name)> read;
  io::Metadata metadata = {{"format", "pt"}};  // Hugging Face's readers want to know
};

Source of_shards(const io::Path& directory, const std::string& state) {
  const auto reader = std::make_shared<io::ShardedReader>(directory);
  const std::string prefix = state + ".";
  Source source;
  for (const auto& [name, entry] : reader->index().tensors) {
    if (!name.starts_with(prefix)) continue;
    source.tensors.push_back({name.substr(prefix.size()), entry.dtype, entry.shape});
  }
  const io::ShardIndex& index = reader->index();
  source.description = fmt::format("{}: \"{}\" of {} shards under {}", directory.string(), state,
                                   index.world_size, index.strategy);
  source.read = [reader, prefix](const std::string& name) { return reader->read(prefix + name); };
  return source;
}

/// The state's name, or the only one of a model in what Fabric has saved.
std::string chosen_state(const io::Path& directory, const std::string& asked) {
  std::vector<std::string> models;
  const io::Metadata metadata = io::ShardedReader(directory).index().metadata;
  const auto states = metadata.find("weft.state");
  try {
    if (states != metadata.end()) {
      const nlohmann::json named =
          io::parse_foreign_json(states->second, directory / states->first);
      for (const auto& [name, state] : named.items()) {
        if (state.at("kind") == "model") models.push_back(name);
      }
    }
  } catch (const nlohmann::json::exception& error) {
    WEFT_FAIL("{}: malformed states: {}", directory.string(), error.what());
  }
  if (asked.empty() && models.size() == 1) return models[0];
  for (const std::string& name : models) {
    if (name == asked) return name;
  }
  WEFT_FAIL("{}: give --state, one of its models: {}", directory.string(),
            models.empty() ? "it has none" : fmt::format("{}", fmt::join(models, ", ")));
}

Source of_checkpoint(const io::Path& path, const std::string& state) {
  const io::Path step = train::find_checkpoint(path);
  WEFT_CHECK(state.empty() || state == kModel,
             "{}: --state: a run's checkpoint has one model: expected {}, or no --state, got {}",
             step.string(), kModel, io::quote(state));
  const bool is_sharded = io::is_sharded_state(step);
  train::Checkpoint checkpoint = train::load_checkpoint(
      step, is_sharded ? train::CheckpointParts::kState : train::CheckpointParts::kModel);
  Source source;
  if (is_sharded) {
    source = of_shards(step, kModel);
  } else {
    const auto tensors = std::make_shared<std::unordered_map<std::string, Tensor>>(
        checkpoint.model.begin(), checkpoint.model.end());
    for (const auto& [name, tensor] : checkpoint.model) {
      source.tensors.push_back({name, tensor.dtype(), tensor.shape()});
    }
    source.read = [tensors](const std::string& name) { return tensors->at(name); };
    source.description = fmt::format("{}: one file", step.string());
  }
  // As the run itself writes it of its final weights.
  const nlohmann::json config = checkpoint.state.value("config", nlohmann::json::object());
  const double eps = config.value("layer_norm_eps", 0.0);
  if (eps > 0) source.metadata["layer_norm_eps"] = nlohmann::json(eps).dump();
  const nlohmann::json gpt2 = checkpoint.state.value("gpt2", nlohmann::json::object());
  for (const auto& [key, ours] :
       {std::pair("layer_norm_eps", "eps"), {"attention_heads", "heads"}, {"dropout", "dropout"}}) {
    if (gpt2.contains(ours)) source.metadata[key] = gpt2.at(ours).dump();
  }
  if (checkpoint.state.contains("preprocess")) {  // of images
    const nn::MetaScope meta;
    source.metadata.merge(train::weights_metadata(train::restore_model(checkpoint, step, false)));
  }
  return source;
}

int run_consolidate(const Arguments& a) {
  std::optional<int64_t> most;
  as_usage([&] {
    if (!a.most.empty()) most = io::parse_bytes(a.most);
    WEFT_CHECK(most || io::Path(a.out).extension() == ".safetensors",
               "{}: expected the name of a .safetensors file, or with --max-shard-size a directory",
               a.out);
  });
  const bool is_bare =
      io::is_sharded_state(a.in) && !std::filesystem::exists(io::Path(a.in) / "state.json");
  const Source source =
      is_bare ? of_shards(a.in, chosen_state(a.in, a.state)) : of_checkpoint(a.in, a.state);
  const io::Path place = most ? io::Path(a.out) : std::filesystem::absolute(a.out).parent_path();
  WEFT_CHECK(!std::filesystem::exists(place / "state.json"),
             "{}: expected a place outside of checkpoints, {} is one", a.out, place.string());
  int64_t bytes = 0;
  for (const auto& [name, dtype, shape] : source.tensors) {
    bytes += static_cast<int64_t>(nbytes(shape, dtype));
  }
  std::string written = a.out;
  if (most) {
    const std::vector<std::string> files =
        io::write_indexed(a.out, source.tensors, *most, source.read, source.metadata);
    written = fmt::format("{}: {}", a.out, fmt::join(files, ", "));
  } else {
    NamedTensors tensors;
    for (const auto& tensor : source.tensors) {
      tensors.emplace_back(tensor.name, source.read(tensor.name));
    }
    io::write_safetensors(a.out, tensors, source.metadata);
  }
  fmt::print("read    {}\nwrote   {}\n{} tensors, {} bytes\n", source.description, written,
             source.tensors.size(), bytes);
  return 0;
}

}  // namespace

void add_consolidate(Command& app, Action& action) {
  const auto [command, a] = add_command<Arguments>(
      app, action, run_consolidate, "consolidate",
      "Write a checkpoint's weights, sharded or not, as one safetensors file or as Hugging Face's "
      "several",
      kFileCommands);
  command.option("RUN", a.in,
                 "A run's directory, one of its checkpoints, or a directory that Fabric has saved",
                 {.required = true});
  command.option("OUT", a.out, "The .safetensors file to write", {.required = true});
  command.option("--max-shard-size", a.most,
                 "Make OUT a directory of files of at most this size each, with "
                 "model.safetensors.index.json: 100MB, 2GiB",
                 {.takes = "SIZE", .usual = "one file"});
  command.option("--state", a.state, "Which model, of a directory that holds several",
                 {.takes = "NAME", .usual = "the only one"});
}

}  // namespace weft::cli
