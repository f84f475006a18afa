#include "train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <compare>
#include <optional>

#include "io/checked_json.h"
#include "io/json_field.h"
#include "io/sharded_safetensors.h"

namespace weft::train {
namespace {

using json = nlohmann::json;

constexpr const char* kFormat = "weft-checkpoint";
constexpr int kVersion = 1, kShardedVersion = 2;
constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kStateFile = "state.json";
constexpr const char* kLatestFile = "latest";
constexpr std::string_view kStepPrefix = "step-";

/// What a checkpoint's directory is called: "step-N", or for a moment "step-N.C" when step N is
/// saved again.
struct StepName {
  int64_t step = 0, copy = 0;

  std::string text() const {
    return copy == 0 ? fmt::format("{}{}", kStepPrefix, step)
                     : fmt::format("{}{}.{}", kStepPrefix, step, copy);
  }
  auto operator<=>(const StepName&) const = default;
};

/// Nothing for other names.
std::optional<StepName> parse_step(std::string_view text) {
  StepName name;
  const char* const end = text.data() + text.size();
  if (!text.starts_with(kStepPrefix)) return std::nullopt;
  const char* rest = std::from_chars(text.data() + kStepPrefix.size(), end, name.step).ptr;
  if (rest != end && *rest == '.') rest = std::from_chars(rest + 1, end, name.copy).ptr;
  // Written as we write it: no sign, no leading zero.
  return rest == end && name.step >= 0 && name.text() == text ? std::optional(name) : std::nullopt;
}

/// The complete checkpoints in a directory, ascending.
std::vector<StepName> list_steps(const io::Path& output) {
  std::vector<StepName> steps;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(output, error)) {
    const auto step = parse_step(entry.path().filename().string());
    if (step && std::filesystem::exists(entry.path() / kStateFile)) steps.push_back(*step);
  }
  std::ranges::sort(steps);
  return steps;
}

template <class T = json>
T field(const json& object, const char* key, const io::Path& file) {
  return io::read_at(file.string(), [&] { return io::field<T>(object, key); });
}

json object_field(const json& object, const char* key, const io::Path& file) {
  return io::read_at(file.string(), [&] { return io::object_field(object, key); });
}

io::FileSummary write_tensors(const io::Path& path, const NamedTensors& tensors) {
  io::FileWriter writer(path);
  io::write_safetensors(writer, tensors, {{"format", "pt"}});
  return writer.finish();
}

void check_format(const json& all, const io::Path& file) {
  WEFT_CHECK(all.is_object() && all.value("format", json()) == kFormat,
             "{} is not a Weft checkpoint's", file.string());
}

/// The file's JSON. Throws Error unless every byte is as it was written.
json read_state(const io::Path& path) {
  const std::string text = io::read_text(path);
  if (io::looks_like_checked_json(text)) return io::parse_checked_json(text, path);
  // Of an earlier version, which summed the state alone.
  json all = io::parse_foreign_json(text, path);
  check_format(all, path);
  const std::string written = field<std::string>(all, "state_crc32", path);
  const std::string found = io::checksum_of(field(all, "state", path).dump());
  WEFT_CHECK(found == written, "{} is damaged: its state's CRC-32 is {}, {} was written",
             path.string(), found, written);
  return all;
}

/// What interrupted saves and removals left behind.
void remove_leftovers(const io::Path& output) {
  std::vector<io::Path> leftovers;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(output, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".step-") || name.starts_with(fmt::format(".{}.", kLatestFile))) {
      leftovers.push_back(entry.path());
    }
  }
  for (const io::Path& path : leftovers) io::remove_tree(path);
}

/// Leaves, of the checkpoints up to `saved`, that one and those that are `kept`.
void remove_old(const io::Path& output, const StepName& saved, const KeptCheckpoints& kept) {
  std::vector<StepName> steps = list_steps(output);
  std::erase_if(steps, [&](const StepName& other) { return other.step > saved.step; });
  int64_t newer = 0, last = -1;
  std::ranges::reverse(steps);
  for (const StepName& name : steps) {
    const bool is_copy = name.step == saved.step ? name != saved : name.step == last;
    const bool is_kept = kept.last == 0 || newer < kept.last || kept.steps.contains(name.step);
    if (!is_copy && is_kept) {
      ++newer;
      last = name.step;
      continue;
    }
    // Renamed first: a half-removed directory must not look like a checkpoint.
    const io::Path hidden = output / fmt::format(".{}.old", name.text());
    io::rename_path(output / name.text(), hidden);
    io::remove_tree(hidden);
  }
}

void verify(const io::Path& path, const json& files, const io::Path& state_file) {
  const json expected = object_field(files, path.filename().c_str(), state_file);
  const io::MappedFile file(path);
  const auto bytes = field<uint64_t>(expected, "bytes", state_file);
  WEFT_CHECK(file.bytes().size() == bytes, "{} is damaged: it has {} bytes, {} were written",
             path.string(), file.bytes().size(), bytes);
  const auto written = field<std::string>(expected, "crc32", state_file);
  const std::string found = io::checksum_text(file.crc32_of(file.bytes()));
  WEFT_CHECK(found == written, "{} is damaged: its CRC-32 is {}, {} was written", path.string(),
             found, written);
}

NamedTensors read_verified(const io::Path& path, const json& files, const io::Path& state_file) {
  verify(path, files, state_file);
  return io::read_safetensors(path).tensors;
}

/// Reads the tensors of a sharded one, whole.
void put_together(Checkpoint& checkpoint, const io::Path& directory, CheckpointParts parts) {
  io::ShardedReader reader(directory);
  for (const auto& [full_name, entry] : reader.index().tensors) {
    const size_t dot = full_name.find('.');
    const bool is_model = full_name.substr(0, dot) == "model";
    if (dot == full_name.npos || (!is_model && parts == CheckpointParts::kModel)) continue;
    (is_model ? checkpoint.model : checkpoint.optimizer)
        .emplace_back(full_name.substr(dot + 1), reader.read(full_name));
  }
}

void write_latest(const io::Path& output, const StepName& name) {
  const std::string line = name.text() + "\n";
  io::write_file_atomically(output / kLatestFile, [&](io::FileWriter& writer) {
    writer.write(line + io::checksum_of(line) + "\n");
  });
}

}  // namespace

bool holds_checkpoint(const io::Path& output) {
  return std::filesystem::exists(output / kLatestFile) || !list_steps(output).empty();
}

bool is_step_name(const io::Path& directory) {
  return parse_step(directory.filename().string()).has_value();
}

CheckpointDraft::CheckpointDraft(const io::Path& output, int64_t step)
    : output_(output), step_(step) {
  WEFT_CHECK(step >= 0, "save_checkpoint: the step is {}", step);
  remove_leftovers(output);
  // Where the step is there already it gets a new name first, so that `latest` names a whole one at
  // every moment.
  while (std::filesystem::exists(output / StepName{step_, copy_}.text())) ++copy_;
  directory_ = output / fmt::format(".{}.tmp", StepName{step_, copy_}.text());
  // Not the directories above it: of a run whose directory has vanished nothing comes back.
  io::make_directory(directory_);
}

CheckpointDraft::~CheckpointDraft() {
  std::error_code ignored;
  if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
}

io::Path CheckpointDraft::commit(const json& state, const KeptCheckpoints& kept,
                                 const std::map<std::string, io::FileSummary>& files) {
  WEFT_CHECK(kept.last >= 0, "save_checkpoint: expected to keep 0 or more, got {}", kept.last);
  json described = json::object();
  const auto describe = [&](const std::string& file, const io::FileSummary& summary) {
    described[file] = {{"bytes", summary.bytes}, {"crc32", io::checksum_text(summary.crc32)}};
  };
  for (const auto& [file, summary] : files) describe(file, summary);
  if (files.empty()) {
    const std::string index = io::read_text(directory_ / io::kShardIndex);
    describe(io::kShardIndex, {index.size(), io::crc32_of(std::as_bytes(std::span(index)))});
  }
  io::FileWriter writer(directory_ / kStateFile);
  writer.write(io::checked_json_text({{"format", kFormat},
                                      {"version", files.empty() ? kShardedVersion : kVersion},
                                      {"step", step_},
                                      {"files", described},
                                      {"state", state}},
                                     2));
  writer.finish();
  io::sync_directory(directory_);
  StepName name{step_, copy_};
  io::rename_path(directory_, output_ / name.text());
  directory_.clear();
  io::sync_directory(output_);
  write_latest(output_, name);
  remove_old(output_, name, kept);
  if (name.copy > 0) {
    // The older one is gone: until `latest` says so, step-N.C that is not there means step-N.
    const StepName usual{step_};
    io::sync_directory(output_);
    io::rename_path(output_ / name.text(), output_ / usual.text());
    io::sync_directory(output_);
    write_latest(output_, usual);
    name = usual;
  }
  return output_ / name.text();
}

io::Path save_checkpoint(const io::Path& output, const Checkpoint& checkpoint,
                         const KeptCheckpoints& kept) {
  CheckpointDraft draft(output, checkpoint.step);
  const io::FileSummary model = write_tensors(draft.directory() / kModelFile, checkpoint.model);
  const io::FileSummary optimizer =
      write_tensors(draft.directory() / kOptimizerFile, checkpoint.optimizer);
  return draft.commit(checkpoint.state, kept, {{kModelFile, model}, {kOptimizerFile, optimizer}});
}

std::string say_what_is_before(const io::Path& step) {
  const auto name = parse_step(step.filename().string());
  if (!name) return "";
  std::vector<StepName> before = list_steps(step.parent_path());
  std::erase_if(before, [&](const StepName& other) { return other.step >= name->step; });
  if (before.empty()) return "";
  return fmt::format("; the checkpoint before it is {}",
                     (step.parent_path() / before.back().text()).string());
}

io::Path find_checkpoint(const io::Path& path) {
  WEFT_CHECK(std::filesystem::is_directory(path), "no checkpoint {}: no such directory",
             path.string());
  if (std::filesystem::exists(path / kStateFile)) return path;
  if (std::filesystem::exists(path / kLatestFile)) {
    const std::string text = io::read_text(path / kLatestFile);
    // Two lines: the name, and the checksum of the first, which earlier versions did not write.
    const std::string name = text.substr(0, text.find('\n')), line = name + "\n";
    const bool is_whole = text == line + io::checksum_of(line) + "\n" || text == line;
    WEFT_CHECK(parse_step(name) && is_whole,
               "{} is damaged: expected the name of a step, such as step-100, and its checksum; "
               "name the directory of a step instead",
               (path / kLatestFile).string());
    const auto is_there = [&](const std::string& directory) {
      return std::filesystem::exists(path / directory / kStateFile);
    };
    const StepName step = *parse_step(name), usual{step.step};
    if (step != usual && !is_there(name) && is_there(usual.text())) return path / usual.text();
    WEFT_CHECK(is_there(name),
               "{} names {}, which is not there; name the directory of another step",
               (path / kLatestFile).string(), name);
    return path / name;
  }
  const std::vector<StepName> steps = list_steps(path);
  WEFT_CHECK(!steps.empty(), "no checkpoint in {}: it holds neither {} nor step-N directories",
             path.string(), kStateFile);
  return path / steps.back().text();
}

Checkpoint load_checkpoint(const io::Path& path, CheckpointParts parts) {
  const io::Path directory = find_checkpoint(path);
  const io::Path state_file = directory / kStateFile;
  Checkpoint checkpoint;
  try {
    const json all = read_state(state_file);
    check_format(all, state_file);
    const json version = field(all, "version", state_file);
    checkpoint.is_sharded = version == kShardedVersion;
    WEFT_CHECK(version == kVersion || checkpoint.is_sharded,
               "{} has format version {}; this program reads versions {} and {}",
               state_file.string(), version.dump(), kVersion, kShardedVersion);
    checkpoint.step = field<int64_t>(all, "step", state_file);
    checkpoint.state = field(all, "state", state_file);
    const json files = object_field(all, "files", state_file);
    if (checkpoint.is_sharded) {
      verify(directory / io::kShardIndex, files, state_file);
      if (parts != CheckpointParts::kState) put_together(checkpoint, directory, parts);
      return checkpoint;
    }
    if (parts == CheckpointParts::kState) return checkpoint;
    checkpoint.model = read_verified(directory / kModelFile, files, state_file);
    if (parts == CheckpointParts::kAll) {
      checkpoint.optimizer = read_verified(directory / kOptimizerFile, files, state_file);
    }
  } catch (const json::exception& error) {
    WEFT_FAIL("{} is damaged: {}{}", state_file.string(), error.what(),
              say_what_is_before(directory));
  } catch (const Error& error) {
    WEFT_FAIL("{}{}", error.what(), say_what_is_before(directory));
  }
  return checkpoint;
}

}  // namespace weft::train
