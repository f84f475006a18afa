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

/// Changes one file of a finished run after the other, reads the run, and puts the file back.
void damage(Rack& rack, Tally& tally, int64_t few,
            const std::function<std::string(std::string& bytes)>& change) {
  SmallRun small(rack, {}, 1);
  const io::Path run = small.reference();
  const io::Path step = train::find_checkpoint(run);
  const std::vector<io::Path> files = {step / "model.safetensors", step / "optimizer.safetensors",
                                       step / "state.json", run / "latest",
                                       run / "model.safetensors"};
  std::vector<std::string> whole;
  for (const io::Path& file : files) whole.push_back(io::read_text(file));
  for (int64_t i = 0; rack.goes_on(i, few); ++i) {
    const size_t at = static_cast<size_t>(i) % files.size();
    std::string bytes = whole[at];
    const std::string what = change(bytes);
    if (bytes == whole[at]) continue;
    write_file(files[at], bytes);
    const std::string loss = read_again(run, step, files[at]);
    tally.count(loss.empty(), fmt::format("{}, {}: {}", files[at].string(), what, loss));
    write_file(files[at], whole[at]);
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
