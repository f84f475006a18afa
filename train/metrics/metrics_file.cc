#include "train/metrics/metrics_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"

namespace weft::train {
namespace {

/// Calls f(line, its number) for each whole line of a text.
void for_each_line(std::string_view text, const std::function<void(std::string_view, int64_t)>& f) {
  int64_t number = 0;
  for (size_t end = 0; (end = text.find('\n')) != text.npos; text.remove_prefix(end + 1)) {
    f(text.substr(0, end), ++number);
  }
}

MetricsRow parse_row(std::string_view line, const io::Path& path, int64_t number) {
  const nlohmann::json row = nlohmann::json::parse(line, nullptr, false);
  const auto check = [&](bool is_right) {
    WEFT_CHECK(is_right, "{}:{}: expected an object of numbers with a \"step\", got {}",
               path.string(), number, line.substr(0, 80));
  };
  check(row.is_object() && row.contains("step") && row.at("step").is_number_integer());
  MetricsRow result;
  for (const auto& [name, value] : row.items()) {
    check(value.is_number() || value.is_null());
    if (name == "step") {
      result.step = value.get<int64_t>();
    } else {
      result.values[name] = value.is_null() ? NAN : value.get<double>();
    }
  }
  return result;
}

/// Writes the file anew without the lines that keep(line, number) does not want.
void cut_lines(const io::Path& path, const std::function<bool(std::string_view, int64_t)>& keep) {
  if (!std::filesystem::exists(path)) return;
  const std::string text = io::read_text(path);
  std::string kept;
  for_each_line(text, [&](std::string_view line, int64_t number) {
    if (keep(line, number)) kept.append(line).append("\n");
  });
  if (kept == text) return;
  io::write_file_atomically(path, [&](io::FileWriter& file) { file.write(kept); });
}

std::vector<std::string_view> cells_of(std::string_view line) {
  std::vector<std::string_view> cells;
  for (size_t end = 0; (end = line.find(',')) != line.npos; line.remove_prefix(end + 1)) {
    cells.push_back(line.substr(0, end));
  }
  cells.push_back(line);
  return cells;
}

}  // namespace

std::vector<MetricsRow> read_metrics(const io::Path& jsonl) {
  std::vector<MetricsRow> rows;
  for_each_line(io::read_text(jsonl), [&](std::string_view line, int64_t number) {
    rows.push_back(parse_row(line, jsonl, number));
  });
  return rows;
}

void cut_metrics(const io::Path& directory, int64_t step, int64_t epochs) {
  const auto is_past = [&](double row_step, double row_epoch) {
    return row_step <= static_cast<double>(step) && row_epoch <= static_cast<double>(epochs);
  };
  const io::Path jsonl = directory / "metrics.jsonl", csv = directory / "metrics.csv";
  cut_lines(jsonl, [&](std::string_view line, int64_t number) {
    const MetricsRow row = parse_row(line, jsonl, number);
    return is_past(static_cast<double>(row.step), row.find("epoch").value_or(0));
  });
  size_t epoch_column = 0;  // 0, the step's, where there is none
  cut_lines(csv, [&](std::string_view line, int64_t number) {
    const std::vector<std::string_view> cells = cells_of(line);
    if (number == 1) {
      const auto at = std::ranges::find(cells, "epoch");
      if (at != cells.end()) epoch_column = static_cast<size_t>(at - cells.begin());
      return true;
    }
    const auto number_in = [&](size_t column) {
      double value = 0;
      const std::string_view cell = column < cells.size() ? cells[column] : "";
      const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
      WEFT_CHECK(error == std::errc() && end == cell.data() + cell.size(),
                 "{}:{}: expected a number in column {}, got \"{}\"", csv.string(), number,
                 column + 1, cell.substr(0, 80));
      return value;
    };
    const bool has_epoch =
        epoch_column > 0 && epoch_column < cells.size() && !cells[epoch_column].empty();
    return is_past(number_in(0), has_epoch ? number_in(epoch_column) : 0);
  });
}

}  // namespace weft::train
