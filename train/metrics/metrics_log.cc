#include "train/metrics/metrics_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "core/error.h"

namespace weft::train {
namespace {

constexpr std::string_view kFirstColumn = "step";

void append(const io::Path& path, const std::string& line) {
  std::ofstream file(path, std::ios::app | std::ios::binary);
  file << line << '\n' << std::flush;
  const int error = errno;
  WEFT_CHECK(file.good(), "cannot write {}: {}", path.string(), std::strerror(error));
}

}  // namespace

MetricsLog::MetricsLog(const io::Path& directory)
    : jsonl_(directory / "metrics.jsonl"), csv_(directory / "metrics.csv") {
  io::make_directories(directory);
  if (!std::filesystem::exists(csv_)) return;
  std::ifstream file(csv_, std::ios::binary);
  std::string header, column;
  std::getline(file, header);
  if (header.empty()) return;
  std::istringstream columns(header);
  std::getline(columns, column, ',');
  WEFT_CHECK(column == kFirstColumn, "{}: expected a table that begins with \"{}\", got \"{}\"",
             csv_.string(), kFirstColumn, column);
  while (std::getline(columns, column, ',')) columns_.push_back(column);
}

void MetricsLog::write(int64_t step, const std::vector<std::pair<std::string, double>>& values) {
  nlohmann::ordered_json line = {{"step", step}};
  std::vector<std::string> unknown;
  for (const auto& [name, value] : values) {
    WEFT_CHECK(!name.empty() && name.find_first_of(",\"\r\n") == std::string::npos,
               "log: a name must not be empty or have commas, quotes or line ends, got \"{}\"",
               name);
    WEFT_CHECK(!line.contains(name), "log: \"{}\" is given twice, or the number of the step", name);
    line[name] = value;
    if (std::ranges::find(columns_, name) == columns_.end()) unknown.push_back(name);
  }
  if (!unknown.empty() || !std::filesystem::exists(csv_)) add_columns(unknown);
  std::string row = std::to_string(step);
  for (const std::string& column : columns_) {
    row += ',';
    const auto value = std::ranges::find(values, column, [](const auto& v) { return v.first; });
    if (value != values.end()) row += fmt::format("{}", value->second);
  }
  append(jsonl_, line.dump());
  append(csv_, row);
}

/// Writes the table anew, the old rows with nothing in the new columns.
void MetricsLog::add_columns(const std::vector<std::string>& names) {
  std::string table;
  if (std::filesystem::exists(csv_)) {
    table = io::read_text(csv_);
    table.erase(0, table.find('\n') == std::string::npos ? table.size() : table.find('\n') + 1);
  }
  const std::string commas(names.size(), ',');
  for (size_t end = 0; (end = table.find('\n', end)) != std::string::npos;) {
    table.insert(end, commas);
    end += commas.size() + 1;
  }
  columns_.insert(columns_.end(), names.begin(), names.end());
  std::string header(kFirstColumn);
  for (const std::string& column : columns_) header += "," + column;
  io::write_file_atomically(csv_, [&](io::FileWriter& file) { file.write(header + "\n" + table); });
}

}  // namespace weft::train
