#include "io/progress.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "core/error.h"

namespace weft::io {
namespace {

constexpr double kTerminalInterval = 0.1;  // seconds between two drawings
constexpr double kPlainInterval = 20;
constexpr int kShortestBar = 4;
constexpr int kLongestBar = 30;
constexpr int kPlainWidth = 1000;  // lines in a file are not cut
constexpr const char* kEraseLine = "\r\x1b[K";

int terminal_width(std::FILE* file) {
  winsize size{};
  return ::ioctl(::fileno(file), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

std::string format_duration(double seconds) {
  const auto total = static_cast<int64_t>(std::llround(std::max(seconds, 0.0)));
  if (total < 60) return fmt::format("{}s", total);
  if (total < 3600) return fmt::format("{}m {:02}s", total / 60, total % 60);
  return fmt::format("{}h {:02}m", total / 3600, total / 60 % 60);
}

Progress::Progress(std::string label, int64_t total_steps, ProgressOptions options)
    : label_(std::move(label)),
      total_steps_(total_steps),
      options_(std::move(options)),
      terminal_(options_.terminal.value_or(::isatty(::fileno(options_.out)) != 0)),
      start_(now()),
      next_draw_(start_ + (terminal_ ? 0 : kPlainInterval)) {}

double Progress::now() const {
  if (options_.clock) return options_.clock();
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Progress::images_per_second() const {
  const double seconds = now() - start_;
  const int64_t images = images_ - options_.first_image;
  return seconds > 0 && images > 0 ? static_cast<double>(images) / seconds : 0;
}

void Progress::update(int64_t step, int64_t images, double loss, double accuracy) {
  step_ = step;
  images_ = images;
  loss_ = loss;
  accuracy_ = accuracy;
  const double time = now();
  if (finished_ || time < next_draw_) return;
  next_draw_ = time + (terminal_ ? kTerminalInterval : kPlainInterval);
  // A stream that takes nothing ends no run: fmt::print() would throw.
  const std::string text =
      terminal_ ? kEraseLine + line(terminal_width(options_.out) - 1) : line(kPlainWidth) + "\n";
  std::fputs(text.c_str(), options_.out);
  std::fflush(options_.out);
  drawn_ = true;
}

void Progress::finish() {
  if (std::exchange(finished_, true) || !terminal_ || !drawn_) return;
  std::fputs(kEraseLine, options_.out);
  std::fflush(options_.out);
}

std::string Progress::line(int width) const {
  const double share =
      total_steps_ > 0 ? std::clamp(static_cast<double>(step_) / total_steps_, 0.0, 1.0) : 0;
  std::string text = fmt::format(" {:3.0f}%", 100 * share);
  if (!std::isnan(loss_)) text += fmt::format("  loss {:.4f}", loss_);
  if (!std::isnan(accuracy_)) text += fmt::format("  accuracy {:.1f}%", 100 * accuracy_);
  text += fmt::format("  {:.0f} {}/s", images_per_second(), options_.unit);
  const int64_t steps = step_ - options_.first_step;
  if (steps > 0) {
    const auto left = static_cast<double>(total_steps_ - step_ + options_.steps_after);
    text += fmt::format("  {} left",
                        format_duration((now() - start_) / static_cast<double>(steps) * left));
  }
  // The bar takes the columns that the figures leave: a line that wrapped could not be redrawn.
  const int spare = width - static_cast<int>(label_.size() + text.size()) - 3;
  if (terminal_ && spare >= kShortestBar) {
    const auto bar = static_cast<size_t>(std::min(spare, kLongestBar));
    const auto filled = static_cast<size_t>(share * static_cast<double>(bar));
    text = " [" + std::string(filled, '=') + std::string(bar - filled, ' ') + "]" + text;
  }
  return (label_ + text).substr(0, static_cast<size_t>(std::max(width, 0)));
}

Table::Table(std::vector<Column> columns, std::FILE* out)
    : columns_(std::move(columns)), out_(out) {
  for (Column& column : columns_) {
    column.width = std::max(column.width, static_cast<int>(column.title.size()));
  }
}

void Table::row(const std::vector<std::string>& cells) {
  WEFT_ASSERT(cells.size() == columns_.size());
  if (!std::exchange(has_rows_, true)) {
    std::vector<std::string> titles, rules;
    for (const Column& column : columns_) {
      titles.push_back(column.title);
      rules.emplace_back(column.width, '-');
    }
    print(titles);
    print(rules);
  }
  print(cells);
  std::fflush(out_);
}

void Table::print(const std::vector<std::string>& cells) {
  std::string text;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (i > 0) text += "  ";
    text += columns_[i].align == Align::kLeft ? fmt::format("{:<{}}", cells[i], columns_[i].width)
                                              : fmt::format("{:>{}}", cells[i], columns_[i].width);
  }
  text.erase(text.find_last_not_of(' ') + 1);
  text += '\n';
  std::fputs(text.c_str(), out_);
}

}  // namespace weft::io
