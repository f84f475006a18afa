#include "train/checkpoint.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <optional>

namespace weft::train {
namespace {

using json = nlohmann::json;

constexpr const char* kFormat = "weft-checkpoint";
constexpr int kVersion = 1;
constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kStateFile = "state.json";
constexpr const char* kLatestFile = "latest";
constexpr std::string_view kStepPrefix = "step-";

std::string step_name(int64_t step) { return fmt::format("{}{}", kStepPrefix, step); }

/// The number in "step-N"; nothing for other names.
std::optional<int64_t> parse_step(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  name.remove_prefix(kStepPrefix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size() || step < 0) return std::nullopt;
  return step;
}

/// Numbers of the complete checkpoints in a directory, ascending.
std::vector<int64_t> list_steps(const io::Path& output) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(output, error)) {
    const auto step = parse_step(entry.path().filename().string());
    if (step && std::filesystem::exists(entry.path() / kStateFile)) steps.push_back(*step);
  }
  std::ranges::sort(steps);
  return steps;
}

std::string checksum_text(uint32_t crc32) { return fmt::format("{:08x}", crc32); }

std::string checksum_of(const json& state) {
  const std::string text = state.dump();
  return checksum_text(io::crc32_of(std::as_bytes(std::span(text))));
}

/// Returns what state.json says of the file.
json write_tensors(const io::Path& path, const NamedTensors& tensors) {
  io::FileWriter writer(path);
  io::write_safetensors(writer, tensors, {{"format", "pt"}});
  const io::FileSummary summary = writer.finish();
  return {{"bytes", summary.bytes}, {"crc32", checksum_text(summary.crc32)}};
}

void write_files(const io::Path& directory, const Checkpoint& checkpoint) {
  json files;
  files[kModelFile] = write_tensors(directory / kModelFile, checkpoint.model);
  files[kOptimizerFile] = write_tensors(directory / kOptimizerFile, checkpoint.optimizer);
  const json all = {{"format", kFormat},         {"version", kVersion},
                    {"step", checkpoint.step},   {"files", files},
                    {"state", checkpoint.state}, {"state_crc32", checksum_of(checkpoint.state)}};
  io::FileWriter writer(directory / kStateFile);
  writer.write(all.dump(2) + "\n");
  writer.finish();
}

/// Puts `fresh` in the place of `place`, where an older directory may be.
void install_directory(const io::Path& fresh, const io::Path& place) {
  if (!std::filesystem::exists(place)) return io::rename_path(fresh, place);
  // Both names stay valid at every moment; the older directory then has the hidden name.
  if (::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, place.c_str(), RENAME_EXCHANGE) != 0) {
    WEFT_CHECK(errno == EINVAL || errno == ENOSYS, "cannot replace {}: {}", place.string(),
               std::strerror(errno));
    // A file system without exchange: two renames, and between them no name holds this step.
    const io::Path old = place.parent_path() / fmt::format(".{}.old", place.filename().string());
    io::rename_path(place, old);
    io::rename_path(fresh, place);
    return io::remove_tree(old);
  }
  io::remove_tree(fresh);
}

/// What interrupted saves and removals left behind.
void remove_leftovers(const io::Path& output) {
  std::vector<io::Path> leftovers;
  for (const auto& entry : std::filesystem::directory_iterator(output)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".step-") || name.starts_with(fmt::format(".{}.", kLatestFile))) {
      leftovers.push_back(entry.path());
    }
  }
  for (const io::Path& path : leftovers) io::remove_tree(path);
}

void remove_old(const io::Path& output, int64_t step, int keep_last) {
  std::vector<int64_t> steps = list_steps(output);
  std::erase_if(steps, [&](int64_t other) { return other > step; });
  const int64_t surplus = static_cast<int64_t>(steps.size()) - keep_last;
  for (int64_t i = 0; i < surplus; ++i) {
    // Renamed first: a half-removed directory must not look like a checkpoint.
    const io::Path hidden = output / fmt::format(".{}.old", step_name(steps[i]));
    io::rename_path(output / step_name(steps[i]), hidden);
    io::remove_tree(hidden);
  }
}

const json& field(const json& object, const char* key, const io::Path& file) {
  const auto place = object.find(key);
  WEFT_CHECK(place != object.end(), "{}: \"{}\" is missing", file.string(), key);
  return *place;
}

NamedTensors read_verified(const io::Path& path, const json& files, const io::Path& state_file) {
  const json& expected = field(files, path.filename().c_str(), state_file);
  const io::MappedFile file(path);
  const uint64_t bytes = field(expected, "bytes", state_file).get<uint64_t>();
  WEFT_CHECK(file.bytes().size() == bytes, "{} is damaged: it has {} bytes, {} were written",
             path.string(), file.bytes().size(), bytes);
  const std::string written = field(expected, "crc32", state_file).get<std::string>();
  const std::string found = checksum_text(io::crc32_of(file.bytes()));
  WEFT_CHECK(found == written, "{} is damaged: its CRC-32 is {}, {} was written", path.string(),
             found, written);
  return io::read_safetensors(path).tensors;
}

}  // namespace

io::Path save_checkpoint(const io::Path& output, const Checkpoint& checkpoint, int keep_last) {
  WEFT_CHECK(checkpoint.step >= 0, "save_checkpoint: the step is {}", checkpoint.step);
  WEFT_CHECK(keep_last >= 0, "save_checkpoint: keep_last is {}", keep_last);
  io::make_directories(output);
  remove_leftovers(output);
  const std::string name = step_name(checkpoint.step);
  const io::Path fresh = output / fmt::format(".{}.tmp", name);
  io::make_directories(fresh);
  try {
    write_files(fresh, checkpoint);
    io::sync_directory(fresh);
    install_directory(fresh, output / name);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove_all(fresh, ignored);
    throw;
  }
  io::sync_directory(output);
  io::write_file_atomically(output / kLatestFile,
                            [&](io::FileWriter& writer) { writer.write(name + "\n"); });
  if (keep_last > 0) remove_old(output, checkpoint.step, keep_last);
  return output / name;
}

io::Path find_checkpoint(const io::Path& path) {
  WEFT_CHECK(std::filesystem::is_directory(path), "no checkpoint {}: no such directory",
             path.string());
  if (std::filesystem::exists(path / kStateFile)) return path;
  if (std::filesystem::exists(path / kLatestFile)) {
    std::string name = io::read_text(path / kLatestFile);
    while (!name.empty() && (name.back() == '\n' || name.back() == ' ')) name.pop_back();
    WEFT_CHECK(parse_step(name), "{} is damaged: expected the name of a step, such as step-100",
               (path / kLatestFile).string());
    WEFT_CHECK(std::filesystem::exists(path / name / kStateFile),
               "{} names {}, which is not there; name the directory of another step",
               (path / kLatestFile).string(), name);
    return path / name;
  }
  const std::vector<int64_t> steps = list_steps(path);
  WEFT_CHECK(!steps.empty(), "no checkpoint in {}: it holds neither {} nor step-N directories",
             path.string(), kStateFile);
  return path / step_name(steps.back());
}

Checkpoint load_checkpoint(const io::Path& path, CheckpointParts parts) {
  const io::Path directory = find_checkpoint(path);
  const io::Path state_file = directory / kStateFile;
  Checkpoint checkpoint;
  try {
    const json all = json::parse(io::read_text(state_file));
    WEFT_CHECK(all.is_object() && all.value("format", json()) == kFormat,
               "{} is not a Weft checkpoint's", state_file.string());
    WEFT_CHECK(field(all, "version", state_file) == kVersion,
               "{} has format version {}; this program reads version {}", state_file.string(),
               all["version"].dump(), kVersion);
    checkpoint.step = field(all, "step", state_file).get<int64_t>();
    checkpoint.state = field(all, "state", state_file);
    const std::string written = field(all, "state_crc32", state_file).get<std::string>();
    const std::string found = checksum_of(checkpoint.state);
    WEFT_CHECK(found == written, "{} is damaged: its state's CRC-32 is {}, {} was written",
               state_file.string(), found, written);
    const json& files = field(all, "files", state_file);
    checkpoint.model = read_verified(directory / kModelFile, files, state_file);
    if (parts == CheckpointParts::kAll) {
      checkpoint.optimizer = read_verified(directory / kOptimizerFile, files, state_file);
    }
  } catch (const json::exception& error) {
    WEFT_FAIL("{} is damaged: {}", state_file.string(), error.what());
  }
  return checkpoint;
}

}  // namespace weft::train
