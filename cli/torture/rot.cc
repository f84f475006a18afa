// Checkpoints and weights whose bytes have changed.
#include <fmt/core.h>

#include <algorithm>
#include <functional>

#include "cli/torture/small_run.h"
#include "core/error.h"
#include "io/safetensors.h"
#include "train/checkpoint.h"

namespace weft::cli {
namespace {

/// Whether reading the run's checkpoint and its final weights reports damage that names a file.
/// Otherwise a reason.
std::string read_again(const io::Path& run, const io::Path& step, const io::Path& file) {
  try {
    if (file.filename() == "model.safetensors" && file.parent_path() == run) {
      io::read_safetensors(file);
    } else {
      train::load_checkpoint(run);
      // Without its checksum `latest` is as earlier versions wrote it.
      if (file == run / "latest" && train::find_checkpoint(run) == step) return "";
    }
  } catch (const Error& error) {
    const std::string message = error.what();
    const bool names_it = message.find(file.filename().string()) != message.npos;
    return names_it ? "" : "the error does not name the file: " + message;
  } catch (const std::exception& error) {
    return fmt::format("an error of another kind: {}", error.what());
  }
  return "it was loaded";
}

/// A file of a finished run.
struct Target {
  io::Path run, step, file;
  std::string whole;
};

std::vector<Target> targets_of(const io::Path& run) {
  const io::Path step = train::find_checkpoint(run);
  std::vector<Target> targets;
  const auto add = [&](const io::Path& file) {
    targets.push_back({run, step, file, io::read_text(file)});
  };
  add(run / "latest");
  add(run / "model.safetensors");
  for (const auto& entry : std::filesystem::directory_iterator(step)) add(entry.path());
  return targets;
}

/// Changes one file of two finished runs, of which one is sharded, after the other, reads the run,
/// and puts the file back.
void damage(Rack& rack, Tally& tally, int64_t few,
            const std::function<std::string(std::string& bytes)>& change) {
  SmallRun small(rack, {}, 1), ranks(rack, sharded_on_two_ranks(), 1);
  std::vector<Target> targets = targets_of(small.reference());
  for (Target& target : targets_of(ranks.reference())) targets.push_back(std::move(target));
  for (int64_t i = 0; rack.goes_on(i, few); ++i) {
    const auto& [run, step, file, whole] = targets[static_cast<size_t>(i) % targets.size()];
    std::string bytes = whole;
    const std::string what = change(bytes);
    if (bytes == whole) continue;
    write_file(file, bytes);
    const std::string loss = read_again(run, step, file);
    tally.count(loss.empty(), fmt::format("{}, {}: {}", file.string(), what, loss));
    write_file(file, whole);
  }
}

}  // namespace

void flip_bits(Rack& rack, Tally& tally) {
  damage(rack, tally, 500, [&](std::string& bytes) {
    const uint64_t bit = rack.random.below(bytes.size() * 8);
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
    return fmt::format("bit {} flipped", bit);
  });
}

void truncate(Rack& rack, Tally& tally) {
  damage(rack, tally, 200, [&](std::string& bytes) {
    bytes.resize(rack.random.below(bytes.size()));
    return fmt::format("cut to {} bytes", bytes.size());
  });
}

}  // namespace weft::cli
