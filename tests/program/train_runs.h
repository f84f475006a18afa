// What the tests of `weft train` share: tiny runs, their events, folders of images.
#pragma once

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/philox.h"
#include "data/image.h"
#include "tests/program/run_weft.h"

namespace weft::cli {

using json = nlohmann::json;

/// The objects of JSON lines; each line must be one.
inline std::vector<json> parse_lines(const std::string& text) {
  std::vector<json> objects;
  std::stringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    INFO(line);
    objects.push_back(json::parse(line));
    REQUIRE(objects.back().is_object());
  }
  return objects;
}

inline std::vector<json> events_of(const std::vector<json>& all, const std::string& kind) {
  std::vector<json> found;
  for (const json& event : all) {
    if (event.at("event") == kind) found.push_back(event);
  }
  return found;
}

/// Runs `weft train --json ARGUMENTS` to its end, in a new directory of that name.
inline std::vector<json> run_train(const std::string& name, const std::string& arguments) {
  const Outcome outcome =
      run_weft("train --json --output " + fresh_scratch(name) + " " + arguments);
  INFO(arguments << "\n" << outcome.err);
  REQUIRE(outcome.code == 0);
  return parse_lines(outcome.out);
}

inline std::string weights(const std::string& run) { return scratch(run) + "/model.safetensors"; }

/// `weft diff`'s exit code for the final weights of two runs.
inline int diff_weights(const std::string& run_a, const std::string& run_b) {
  return run_weft("diff " + weights(run_a) + " " + weights(run_b)).code;
}

/// The largest difference between two runs' final weights.
inline double distance(const std::string& run_a, const std::string& run_b) {
  const Outcome outcome = run_weft("diff --json " + weights(run_a) + " " + weights(run_b));
  INFO(outcome.err);
  REQUIRE(outcome.code <= 1);
  return parse_lines(outcome.out).back().at("max_abs");
}

/// Runs `weft train --output OUTPUT ARGUMENTS`, `launcher` in front of it, 90 seconds at most, and
/// kills its rank 1 once the first checkpoint is there, or the text `said` on standard output.
/// Ranks are known by their environment.
inline Outcome train_with_killed_rank(const std::string& output, const std::string& arguments,
                                      const std::string& launcher = "",
                                      const std::string& said = "") {
  const std::string is_ready = said.empty()
                                   ? fmt::format("[ -e {}/latest ]", output)
                                   : fmt::format("grep -q '{}' {}", said, scratch("stdout.txt"));
  return run_shell(
      fmt::format("WEFT_DIST_TIMEOUT=5 timeout 300 {3} {0} train --output {1} {2} & run=$!; "
                  "for i in $(seq 400); do {4} && break; sleep 0.05; done; "
                  "victim=$(pgrep -f -- '--output {1}' | while read p; do "
                  "grep -qzE '^(OMPI_COMM_WORLD_RANK|PMI_RANK|RANK)=1$' /proc/$p/environ "
                  "2>/dev/null && echo $p; done | head -1); "
                  "kill -9 $victim; wait $run",
                  weft_program(), output, arguments, launcher, is_ready));
}

inline void write_bytes(const std::string& path, const std::vector<uint8_t>& bytes) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

/// A new folder of class folders red, green and blue, whose images show that colour under noise.
inline std::string make_colour_folders(const std::string& name, int images_per_class, int height,
                                       int width) {
  const std::string folder = fresh_scratch(name);
  const char* colours[] = {"red", "green", "blue"};
  for (int c = 0; c < 3; ++c) {
    for (int i = 0; i < images_per_class; ++i) {
      Philox random(1, static_cast<uint64_t>(c), static_cast<uint64_t>(i) << 32);
      data::Image image(height, width);
      for (size_t p = 0; p < image.pixels.size(); ++p) {
        image.pixels[p] = static_cast<uint8_t>(random.below(160) + (p % 3 == size_t(c) ? 95 : 0));
      }
      write_bytes(fmt::format("{}/{}/{:03}.png", folder, colours[c], i), data::encode_png(image));
    }
  }
  return folder;
}

}  // namespace weft::cli
