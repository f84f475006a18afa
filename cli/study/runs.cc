#include "cli/study/runs.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/run_program.h"
#include "cli/study/noise_scale.h"
#include "io/files.h"
#include "train/config_files/config_file.h"
#include "train/config_yaml.h"
#include "train/metrics/metrics_file.h"

namespace weft::cli {
namespace {

namespace fs = std::filesystem;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

/// The figures of a directory, as far as the run has come.
RunFigures read_figures(const std::string& directory, uint64_t seed) {
  RunFigures run{
      .directory = directory, .seed = seed, .accuracy = kNone, .loss = kNone, .noise_scale = kNone};
  const std::string metrics = directory + "/metrics.jsonl";
  if (!fs::exists(metrics)) return run;
  for (const train::MetricsRow& row : train::read_metrics(metrics)) {
    run.seconds = row.find("seconds").value_or(run.seconds);
    run.step = row.step;
    const auto loss = row.find("loss/validation");
    if (!loss) continue;
    run.loss = *loss;
    run.accuracy = row.find("accuracy/validation").value_or(kNone);
    run.curve.push_back({row.step, run.accuracy, run.loss});
  }
  return run;
}

/// Marks a run that failed, so that it is not tried again.
std::string failure_of(const std::string& directory) { return directory + "/failed"; }

/// Whether the run is at its end, be that one of its epochs or of --max-steps: a run that was
/// stopped writes no weights.
bool is_complete(const std::string& directory) {
  return fs::exists(directory + "/model.safetensors");
}

void check_same_settings(const std::string& directory, const train::Config& config) {
  const std::string file = directory + "/config.yaml";
  if (!fs::exists(file)) return;
  const train::Config there = train::with_file(train::Config(), train::read_config_file(file));
  nlohmann::json mine = to_json(config), its = to_json(there);
  for (const auto& [key, value] : mine.items()) {
    WEFT_CHECK(key == "recipe" || its.at(key) == value,
               "{} is a run with {} {}, not {}: give the study another --output", directory,
               train::option_name(key), its.at(key).dump(), value.dump());
  }
}

/// Of a run that has ended: where its figures were lost, so would it be in every mean.
void check_all_there(const RunFigures& run) {
  const std::string latest = run.directory + "/latest";
  if (run.failed || !fs::exists(latest)) return;
  const std::string text = io::read_text(latest), step = text.substr(0, text.find('\n'));
  WEFT_CHECK(step == fmt::format("step-{}", run.step),
             "{0}: its metrics.jsonl ends at step {1}, its last checkpoint is {2}; expected the "
             "figures of the whole run. Remove {0} to train it again",
             run.directory, run.step, step);
}

/// A run to its end; its exit code.
int train_once(const std::string& directory, const train::Config& config,
               const StudyOptions& options) {
  std::vector<std::string> words = {fs::read_symlink("/proc/self/exe"), "train", "--json"};
  if (fs::exists(directory + "/latest")) {
    words.insert(words.end(), {"--resume", directory});
  } else {
    const std::string settings = directory + ".yaml";
    io::write_file_atomically(settings,
                              [&](io::FileWriter& file) { file.write(train::to_yaml(config)); });
    words.insert(words.end(), {"--config", settings, "--output", directory});
  }
  if (options.threads > 0)
    words.insert(words.end(), {"--threads", std::to_string(options.threads)});
  return run_program(words, [](const std::string&) {});
}

}  // namespace

Cell::Spread Cell::spread(const std::function<double(const RunFigures&)>& figure) const {
  Spread s;
  double squares = 0;
  for (const RunFigures& run : runs) {
    const double value = run.failed ? kNone : figure(run);
    if (!std::isfinite(value)) continue;
    // Welford's recurrence.
    const double before = value - s.mean;
    s.mean += before / static_cast<double>(++s.count);
    squares += before * (value - s.mean);
  }
  if (s.count == 0) s.mean = kNone;
  s.deviation = s.count > 1 ? std::sqrt(squares / static_cast<double>(s.count - 1)) : kNone;
  return s;
}

std::string text_of(const Cell::Spread& spread, double factor, int digits) {
  if (spread.count == 0) return "-";
  const std::string mean = fmt::format("{:.{}f}", factor * spread.mean, digits);
  if (spread.count == 1) return mean;
  return fmt::format("{} +- {:.{}f}", mean, factor * spread.deviation, digits);
}

bool train_all(std::vector<Cell>& cells, const StudyOptions& options) {
  // Rules may come to the same settings, as none, linear and sqrt do at the run's own batch.
  const auto cell_alike = [&](const Cell& cell) -> const Cell* {
    const Cell* other = &cells.front();
    while (other != &cell && to_json(other->config) != to_json(cell.config)) ++other;
    return other == &cell ? nullptr : other;
  };
  const auto different = std::ranges::count(cells, nullptr, cell_alike);
  const int64_t total = different * options.seeds;
  int64_t number = 0;
  io::make_directories(options.output);
  for (Cell& cell : cells) {
    if (const Cell* const alike = cell_alike(cell)) {
      cell.runs = alike->runs;
      continue;
    }
    for (int s = 0; s < options.seeds; ++s) {
      train::Config config = cell.config;
      config.seed += static_cast<uint64_t>(s);
      std::string name = fmt::format("{}-seed{}", fmt::join(cell.labels, "-"), config.seed);
      std::ranges::replace(name, '/', '_');  // of a path
      const std::string directory = options.output + "/" + name;
      check_same_settings(directory, config);
      if (!is_complete(directory) && !fs::exists(failure_of(directory))) {
        fmt::print(stderr, "[{}/{}] {}\n", ++number, total, name);
        const int code = train_once(directory, config, options);
        if (code == 130) return false;
        const bool failed = code == kFailure && fs::exists(directory + "/metrics.jsonl");
        WEFT_CHECK(code == 0 || failed, "study: the run {} failed (exit code {}); see above",
                   directory, code);
        if (failed) {
          io::write_file_atomically(failure_of(directory), [](io::FileWriter&) {});
        }
      } else {
        ++number;
      }
      RunFigures run = read_figures(directory, config.seed);
      run.failed = fs::exists(failure_of(directory));
      check_all_there(run);
      if (options.measures_noise && !run.failed) run.noise_scale = noise_scale_of_run(directory);
      cell.runs.push_back(std::move(run));
    }
  }
  return true;
}

}  // namespace weft::cli
