// What a person watching a run sees: a bar that moves in place, and a table that grows by a row.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace weft::io {

/// "4s", "2m 05s", "1h 02m".
std::string format_duration(double seconds);

struct ProgressOptions {
  std::FILE* out = stderr;
  /// Steps, and images in them, that were done before: they count in neither rate nor time left.
  int64_t first_step = 0;
  int64_t first_image = 0;
  /// Steps that follow those of this bar, counted in the time left.
  int64_t steps_after = 0;
  /// Whether `out` is a terminal; asked of the system when not set.
  std::optional<bool> terminal;
  /// Seconds of a steady clock; for tests.
  std::function<double()> clock;
  std::string unit = "images";  // what update() counts besides steps
};

/// A bar with loss, accuracy, images per second and time left. On a terminal it is drawn in place,
/// at most ten times a second; elsewhere it is a plain line every 20 seconds.
///
///   Progress progress("epoch 1/10", loader.batches());
///   for (...) progress.update(step, images, loss, accuracy);
///   progress.finish();  // takes the bar away; the caller prints the epoch's row
class Progress {
 public:
  Progress(std::string label, int64_t total_steps, ProgressOptions options = {});
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `step` steps and `images` images are done. Accuracy is a fraction; NaN leaves a figure out.
  void update(int64_t step, int64_t images, double loss = kNone, double accuracy = kNone);
  /// Removes the bar. Called again, it does nothing.
  void finish();

  /// Since construction.
  double images_per_second() const;

 private:
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

  double now() const;
  std::string line(int width) const;

  const std::string label_;
  const int64_t total_steps_;
  const ProgressOptions options_;
  const bool terminal_;
  const double start_;
  double next_draw_;
  int64_t step_ = 0;
  int64_t images_ = 0;
  double loss_ = kNone;
  double accuracy_ = kNone;
  bool drawn_ = false;
  bool finished_ = false;
};

/// Rows under aligned headings, each printed at once.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    int width = 0;  // of the column; at least the title's
    Align align = Align::kRight;
  };

  explicit Table(std::vector<Column> columns, std::FILE* out = stdout);
  /// As many cells as columns. The first row is preceded by the headings.
  void row(const std::vector<std::string>& cells);

 private:
  void print(const std::vector<std::string>& cells);

  std::vector<Column> columns_;
  std::FILE* out_;
  bool has_rows_ = false;
};

}  // namespace weft::io
