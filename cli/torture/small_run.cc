#include "cli/torture/small_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>

#include "core/error.h"
#include "data/image.h"

namespace weft::cli {
namespace {

/// Three classes of noise with a tint, 16 images each to train and 4 to validate.
void draw_images(const io::Path& folder) {
  constexpr int kSize = 16;
  for (const auto& [part, count] : {std::pair("train", 16), std::pair("val", 4)}) {
    for (int tint = 0; tint < 3; ++tint) {
      const io::Path place = folder / part / fmt::format("tint-{}", tint);
      io::make_directories(place);
      for (int i = 0; i < count; ++i) {
        Philox random(tint, static_cast<uint64_t>(i), part[0]);
        data::Image image(kSize, kSize);
        for (size_t p = 0; p < image.pixels.size(); ++p) {
          const bool is_tinted = static_cast<int>(p % 3) == tint;
          image.pixels[p] = static_cast<uint8_t>(random.below(160) + (is_tinted ? 95 : 0));
        }
        const std::vector<uint8_t> png = data::encode_png(image);
        write_file(place / fmt::format("{:02}.png", i), std::string(png.begin(), png.end()));
      }
    }
  }
}

}  // namespace

void write_file(const io::Path& path, std::string_view bytes) {
  io::FileWriter file(path);
  file.write(bytes);
  file.finish();
}

const std::vector<std::string>& sharded_on_two_ranks() {
  static const auto& words = *new std::vector<std::string>{
      "--devices", "2", "--strategy", "fsdp", "--state-dict-type", "sharded"};
  return words;
}

SmallRun::SmallRun(Rack& rack, const std::vector<std::string>& extra, int epochs,
                   const std::map<std::string, std::string>& environment)
    : rack_(rack),
      scratch_(rack.scratch),
      extra_(extra),
      epochs_(epochs),
      environment_(environment) {
  if (!std::filesystem::exists(scratch_ / "images")) draw_images(scratch_ / "images");
  reference_ = fresh_output();
  const auto begin = std::chrono::steady_clock::now();
  const ChildEnd end = run(start(reference_)).wait(kRunSeconds);
  seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  WEFT_CHECK(end.code == 0, "torture: the undisturbed run failed: {}", describe(end));
}

io::Path SmallRun::fresh_output() { return scratch_ / fmt::format("run-{}", rack_.outputs++); }

std::vector<std::string> SmallRun::start(const io::Path& output) const {
  std::vector<std::string> words = {"train", "--data", "folder:" + (scratch_ / "images").string()};
  words.insert(words.end(), {"--model", "cct", "--image-size", "16"});
  words.insert(words.end(), {"--epochs", std::to_string(epochs_), "--save-every", "2"});
  words.insert(words.end(), {"--threads", "2", "--device", "cpu", "--output", output});
  const bool has_batch = std::ranges::count(extra_, "--global-batch-size") > 0;
  if (!has_batch) words.insert(words.end(), {"--batch-size", "8"});
  words.insert(words.end(), extra_.begin(), extra_.end());
  return words;
}

std::vector<std::string> SmallRun::resume(const io::Path& output) const {
  return {"train", "--resume", output, "--threads", "2", "--device", "cpu"};
}

std::vector<std::string> SmallRun::go_on(const io::Path& output) const {
  return std::filesystem::exists(output / "latest") ? resume(output) : start(output);
}

std::string SmallRun::finish(const io::Path& output) {
  const ChildEnd end = run(go_on(output)).wait(kRunSeconds);
  if (end.code != 0) return "going on failed: " + describe(end);
  if (io::read_text(output / "model.safetensors") !=
      io::read_text(reference_ / "model.safetensors")) {
    return "other weights than the undisturbed run's";
  }
  io::remove_tree(output);
  return "";
}

std::string describe(const ChildEnd& end) {
  return fmt::format("{}exit code {}: {}", end.is_late ? "too late, " : "", end.code,
                     end.last_words());
}

}  // namespace weft::cli
