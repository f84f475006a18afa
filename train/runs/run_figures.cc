#include "train/runs/run_figures.h"

#include <filesystem>

#include "train/config_yaml.h"
#include "train/metrics/metrics_file.h"

namespace weft::train {

RunFigures::RunFigures(const io::Path& output, const Config& config, int64_t step, int64_t epoch)
    : curves_(output, step + 1) {
  io::write_file_atomically(output / "config.yaml",
                            [&](io::FileWriter& file) { file.write(to_yaml(config)); });
  cut_metrics(output, step, epoch);
  metrics_.emplace(output);
  if (std::filesystem::exists(output / "metrics.jsonl")) {
    for (const MetricsRow& row : read_metrics(output / "metrics.jsonl")) {
      seconds_before_ = row.find("seconds").value_or(seconds_before_);
    }
  }
  start_ = std::chrono::steady_clock::now();
}

void RunFigures::record(int64_t step, Figures figures, const std::vector<LayerFigures>& layers) {
  for (auto& figure : named_figures(layers)) figures.push_back(std::move(figure));
  for (const LayerFigures& layer : layers) {
    curves_.histogram("watch/grad/" + layer.name, step, layer.grad);
  }
  for (const auto& [name, value] : figures) curves_.scalar(name, step, value);
  const std::chrono::duration<double> here = std::chrono::steady_clock::now() - start_;
  figures.emplace_back("seconds", seconds_before_ + here.count());
  metrics_->write(step, figures);
  curves_.flush();
}

void RunFigures::image(const std::string& name, int64_t step, int height, int width,
                       const std::string& png) {
  curves_.image(name, step, height, width, png);
  curves_.flush();
}

}  // namespace weft::train
