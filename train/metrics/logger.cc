#include "train/metrics/logger.h"

#include <fmt/format.h>

#include <limits>

#include "train/metrics/metrics_file.h"

namespace weft::train {

void MetricsLogger::begin(int64_t) {
  log_.emplace(directory_);
  io::FileWriter(directory_ / ".writable");  // its destructor removes it
}

void MetricsLogger::resume(int64_t step) {
  // The step says it all: a Trainer's row of an epoch bears the step that has ended it.
  cut_metrics(directory_, step, std::numeric_limits<int64_t>::max());
}

void MetricsLogger::log_metrics(int64_t step, const NamedValues& values) {
  log_->write(step, values);
}

void TensorBoardLogger::begin(int64_t step) {
  io::make_directories(directory_);
  curves_.emplace(directory_, step + (resumed_at_ == step));
}

void TensorBoardLogger::log_metrics(int64_t step, const NamedValues& values) {
  for (const auto& [name, value] : values) curves_->scalar(name, step, value);
  curves_->flush();
}

void TensorBoardLogger::finish() { curves_.reset(); }

void ConsoleLogger::begin(int64_t) {
  since_ = std::chrono::steady_clock::now();
  table_.reset();
}

void ConsoleLogger::end_epoch(int64_t epoch, int64_t step, const NamedValues& metrics) {
  constexpr int kWidth = 10;
  std::vector<std::string> names;
  for (const auto& [name, value] : metrics) {
    if (!name.ends_with("_step")) names.push_back(name);
  }
  if (!table_ || names != names_) {
    std::vector<io::Table::Column> columns = {{"epoch", 5}, {"step", 8}};
    for (const std::string& name : names) columns.push_back({name, kWidth});
    columns.push_back({"time", 7});
    table_.emplace(columns, out_);
    names_ = std::move(names);
  }
  std::vector<std::string> cells = {fmt::format("{}", epoch + 1), fmt::format("{}", step)};
  for (const auto& [name, value] : metrics) {
    if (!name.ends_with("_step")) cells.push_back(fmt::format("{:.4g}", value));
  }
  const auto now = std::chrono::steady_clock::now();
  cells.push_back(io::format_duration(std::chrono::duration<double>(now - since_).count()));
  since_ = now;
  table_->row(cells);
}

}  // namespace weft::train
