#include "cli/report/run_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/report/median.h"
#include "cli/report/svg_plot.h"
#include "core/error.h"
#include "io/progress.h"
#include "train/checkpoint.h"
#include "train/config_files/config_file.h"
#include "train/config_yaml.h"

namespace weft::report {
namespace {

namespace fs = std::filesystem;
using Runs = std::vector<RunRecord>;

constexpr size_t kMostPoints = 500;  // of a curve
// Of a confusion matrix; a larger one is a picture of blocks, or none.
constexpr size_t kMostWrittenClasses = 20, kMostDrawnClasses = 1000, kMostListedClasses = 50;

// ---- what the runs say

/// The values of a figure, where a run has it.
std::vector<double> values_of(const RunRecord& run, const std::string& name) {
  std::vector<double> values;
  for (const train::MetricsRow& row : run.metrics) {
    if (const auto value = row.find(name)) values.push_back(*value);
  }
  return values;
}

bool has(const Runs& runs, const std::string& name) {
  return std::ranges::any_of(runs, [&](const RunRecord& run) {
    return std::ranges::any_of(
        run.metrics, [&](const train::MetricsRow& row) { return row.find(name).has_value(); });
  });
}

double last_or_nan(const std::vector<double>& values) {
  return values.empty() ? NAN : values.back();
}

double median_or_nan(std::vector<double> values) {
  std::erase_if(values, [](double x) { return !std::isfinite(x); });
  return values.empty() ? NAN : median(std::move(values));
}

double largest(const Runs& runs, const std::string& name) {
  double most = 0;
  for (const RunRecord& run : runs) {
    for (const double value : values_of(run, name)) {
      if (std::isfinite(value)) most = std::max(most, value);
    }
  }
  return most;
}

/// A unit that numbers up to `most` are read well in, and how much of the base unit it is.
struct Unit {
  std::string name;
  double size;
};
Unit time_unit(double most_seconds) {
  if (most_seconds < 180) return {"s", 1};
  if (most_seconds < 3 * 3600) return {"min", 60};
  return {"h", 3600};
}
Unit memory_unit(double most_bytes) {
  if (most_bytes < 1e9) return {"MiB", 0x1p20};
  return {"GiB", 0x1p30};
}

std::string bytes_text(double bytes) {
  const Unit unit = memory_unit(bytes);
  return fmt::format("{:.1f} {}", bytes / unit.size, unit.name);
}
std::string percent(double fraction) {
  return std::isfinite(fraction) ? fmt::format("{:.2f}%", 100 * fraction) : "–";
}
std::string fixed(double value) {
  return std::isfinite(value) ? fmt::format("{:.4f}", value) : "–";
}

// ---- curves

/// Where points lie along x: after so many steps, or so long after the run's beginning.
enum class Along { kSteps, kTime };

struct Curve {
  std::vector<double> x, y;
  size_t rows_per_point = 1;
};

/// A figure of a run; of more than kMostPoints values, means of neighbours.
Curve curve_of(const RunRecord& run, const std::string& name, Along along, double x_unit,
               double y_unit) {
  std::vector<double> x, y;
  for (const train::MetricsRow& row : run.metrics) {
    const auto value = row.find(name);
    const auto seconds = row.find("seconds");
    if (!value || (along == Along::kTime && !seconds)) continue;
    x.push_back(along == Along::kTime ? *seconds / x_unit : static_cast<double>(row.step));
    y.push_back(*value / y_unit);
  }
  Curve curve;
  const size_t by = curve.rows_per_point = (y.size() + kMostPoints - 1) / kMostPoints;
  for (size_t begin = 0; begin < y.size(); begin += by) {
    const size_t end = std::min(begin + by, y.size());
    double x_sum = 0, y_sum = 0;
    int finite = 0;
    for (size_t i = begin; i < end; ++i) {
      x_sum += x[i];
      if (!std::isfinite(y[i])) continue;
      y_sum += y[i];
      ++finite;
    }
    curve.x.push_back(x_sum / static_cast<double>(end - begin));
    curve.y.push_back(finite > 0 ? y_sum / finite : NAN);
  }
  return curve;
}

struct Line {
  std::string figure, label;
  Mark mark = Mark::kLine;
};

struct CurvePlot {
  std::string title;
  Axis y;
  std::vector<Line> lines;
  double y_unit = 1;
  std::string caption;
};

/// The plot of one or two figures of all runs. A run keeps its colour where there are several; of a
/// single one each figure has its own.
LinePlot draw_curves(const Runs& runs, const CurvePlot& plot, Along along) {
  const Unit time = time_unit(largest(runs, "seconds"));
  LinePlot result = {.title = plot.title,
                     .x = along == Along::kSteps ? Axis{.label = "steps"}
                                                 : Axis{.label = "time", .unit = time.name},
                     .y = plot.y,
                     .caption = plot.caption};
  size_t most = 1;
  for (size_t r = 0; r < runs.size(); ++r) {
    for (size_t k = 0; k < plot.lines.size(); ++k) {
      const auto& [figure, label, mark] = plot.lines[k];
      Curve curve = curve_of(runs[r], figure, along, time.size, plot.y_unit);
      if (curve.x.empty()) continue;
      most = std::max(most, curve.rows_per_point);
      const bool is_one_run = runs.size() == 1, is_one_line = plot.lines.size() == 1;
      result.series.push_back({.name = is_one_run    ? label
                                       : is_one_line ? runs[r].name
                                                     : runs[r].name + ": " + label,
                               .x = std::move(curve.x),
                               .y = std::move(curve.y),
                               .mark = mark,
                               .color = static_cast<int>(is_one_run ? k : r),
                               .in_legend = !is_one_run || !is_one_line});
    }
  }
  if (most > 1) {
    result.caption += fmt::format("{}Points are means of up to {} rows of metrics.jsonl.",
                                  result.caption.empty() ? "" : " ", most);
  }
  return result;
}

void add_curves(Page& page, const Runs& runs, const CurvePlot& plot, bool over_time = false) {
  CurvePlot over = plot;
  over.title += " over steps";
  page.add(draw_curves(runs, over, Along::kSteps));
  if (!over_time || !has(runs, "seconds")) return;
  over.title = plot.title + " over time";
  page.add(draw_curves(runs, over, Along::kTime));
}

// ---- sections

void say_what_is_missing(Page& page, const Runs& runs, std::string RunRecord::*reason) {
  for (const RunRecord& run : runs) {
    if (!(run.*reason).empty()) page.paragraph(run.name + ": " + run.*reason + ".");
  }
}

/// A row for each figure, a column for each run.
void add_overview(Page& page, const Runs& runs) {
  Table table = {.columns = {""}};
  table.rows = {{"data"}, {"model"}, {"precision"}, {"devices"}};
  for (const char* figure : {"epochs", "steps", "training loss", "training accuracy",
                             "validation loss", "validation accuracy", "best validation accuracy",
                             "images per second (median of steps)", "memory (most)", "time"}) {
    table.rows.push_back({figure});
  }
  for (const RunRecord& run : runs) {
    std::vector<std::string> cells;
    if (run.config) {
      const train::Config& c = *run.config;
      cells = {c.data, c.model, c.precision, fmt::format("{}", c.devices)};
    } else {
      cells.assign(4, "–");
    }
    const auto last = [&](const std::string& name) { return last_or_nan(values_of(run, name)); };
    const std::vector<double> epochs = values_of(run, "epoch");
    cells.push_back(fmt::format("{:.0f}", epochs.empty() ? 0 : epochs.back()));
    const auto limit = run.config ? train::epoch_limit(*run.config) : std::nullopt;
    if (limit) cells.back() += fmt::format(" of {}", *limit);
    cells.push_back(fmt::format("{}", run.metrics.empty() ? 0 : run.metrics.back().step));
    double best = NAN;
    for (const double a : values_of(run, "accuracy/validation")) best = best >= a ? best : a;
    const double speed = median_or_nan(values_of(run, "images_per_second"));
    const double seconds = last("seconds"), memory = largest({run}, "memory_bytes");
    cells.insert(cells.end(),
                 {fixed(last("loss/train")), percent(last("accuracy/train")),
                  fixed(last("loss/validation")), percent(last("accuracy/validation")),
                  percent(best), std::isfinite(speed) ? fmt::format("{:.0f}", speed) : "–",
                  memory > 0 ? bytes_text(memory) : "–",
                  std::isfinite(seconds) ? io::format_duration(seconds) : "–"});
    table.columns.push_back(run.name);
    for (size_t i = 0; i < cells.size(); ++i) table.rows[i].push_back(cells[i]);
  }
  page.heading("Overview");
  page.add(table);
  say_what_is_missing(page, runs, &RunRecord::no_metrics);
}

void add_section(Page& page, const Runs& runs, const CurvePlot& plot, const std::string& absent,
                 bool over_time = false) {
  page.heading(plot.title);
  const bool is_there =
      std::ranges::any_of(plot.lines, [&](const Line& line) { return has(runs, line.figure); });
  if (is_there) {
    add_curves(page, runs, plot, over_time);
  } else {
    page.paragraph(absent);
  }
}

/// Whether a figure is part of a section that has its own title.
bool has_section(const std::string& name) {
  static const std::set<std::string> kNames = {
      "epoch",           "seconds",   "loss/step",      "loss/train",
      "loss/validation", "lr",        "loss_scale",     "images_per_second",
      "memory_bytes",    "grad_norm", "accuracy/train", "accuracy/validation"};
  return kNames.contains(name) || name.starts_with("watch/");
}

void add_curve_sections(Page& page, const Runs& runs) {
  const std::string nothing = "No run recorded it.";
  add_section(page, runs,
              {.title = "Loss",
               .y = {.label = "loss"},
               .lines = {{"loss/step", "training"},
                         {"loss/validation", "validation", Mark::kLineAndPoints}},
               .caption = "Lines: of each step's images. Points: of all validation images, after "
                          "each epoch."},
              nothing, true);
  add_section(page, runs,
              {.title = "Accuracy",
               .y = {.label = "accuracy", .unit = "%"},
               .lines = {{"accuracy/train", "training", Mark::kDashed},
                         {"accuracy/validation", "validation", Mark::kLineAndPoints}},
               .y_unit = 0.01,
               .caption = "Dashed: of the epoch's training images, augmented, while the model was "
                          "learning. Points: of all validation images, after each epoch."},
              "No run has finished an epoch.", true);
  add_section(page, runs,
              {.title = "Images per second",
               .y = {.label = "images per second", .min = 0},
               .lines = {{"images_per_second", "of a step"}}},
              nothing);
  add_section(page, runs,
              {.title = "Learning rate",
               .y = {.label = "learning rate"},
               .lines = {{"lr", "learning rate"}}},
              nothing);
  add_section(page, runs,
              {.title = "Loss scale",
               .y = {.label = "loss scale", .scale = Scale::kLog2},
               .lines = {{"loss_scale", "loss scale"}}},
              "No run scaled its loss: precision fp16 does.");
  const Unit memory = memory_unit(largest(runs, "memory_bytes"));
  add_section(
      page, runs,
      {.title = "Memory",
       .y = {.label = "memory", .unit = memory.name, .min = 0},
       .lines = {{"memory_bytes", "of tensors"}},
       .y_unit = memory.size,
       .caption = "Of tensors on the first rank's device, the most at a time in each step."},
      nothing);
  add_section(page, runs,
              {.title = "Gradient norm",
               .y = {.label = "norm", .scale = Scale::kLog10},
               .lines = {{"grad_norm", "gradient norm"}},
               .caption = "Over all gradients, before they are clipped."},
              "No run recorded it: it is known with --clip-norm, with --nonfinite skip and under "
              "precision fp16.");
  std::set<std::string> others;
  for (const RunRecord& run : runs) {
    for (const train::MetricsRow& row : run.metrics) {
      for (const auto& [name, value] : row.values) {
        if (!has_section(name)) others.insert(name);
      }
    }
  }
  if (!others.empty()) page.heading("Other figures");
  for (const std::string& name : others) {
    add_curves(page, runs, {.title = name, .y = {.label = name}, .lines = {{name, name}}});
  }
}

/// What --watch saw: a row of `matrix` for each layer, a column for each step.
struct Watched {
  std::vector<std::string> layers, steps;
  std::vector<std::vector<double>> matrix;
};

Watched watched(const RunRecord& run, const std::string& figure) {
  const std::string prefix = "watch/" + figure + "/";
  Watched result;
  std::map<std::string, size_t> places;
  for (const train::MetricsRow& row : run.metrics) {
    const size_t column = result.steps.size();
    bool is_there = false;
    for (auto at = row.values.lower_bound(prefix);
         at != row.values.end() && at->first.starts_with(prefix); ++at) {
      is_there = true;
      const std::string layer = at->first.substr(prefix.size());
      const auto [place, is_new] = places.emplace(layer, result.layers.size());
      if (is_new) {
        result.layers.push_back(layer);
        result.matrix.emplace_back();
      }
      std::vector<double>& values = result.matrix[place->second];
      values.resize(column, NAN);
      values.push_back(at->second);
    }
    if (is_there) result.steps.push_back(fmt::format("step {}", row.step));
  }
  for (auto& values : result.matrix) values.resize(result.steps.size(), NAN);
  return result;
}

void add_layers(Page& page, const Runs& runs) {
  page.heading("Layers");
  bool is_there = false;
  for (const RunRecord& run : runs) {
    const Watched norms = watched(run, "grad_norm");
    if (norms.steps.empty()) continue;
    is_there = true;
    const Watched underflow = watched(run, "underflow");
    double most = 0.01;  // so that next to nothing stays dark
    for (const auto& row : underflow.matrix) {
      for (const double share : row) most = std::max(most, share);
    }
    page.add(HeatMap{.title = run.name + ": gradient norm of each layer",
                     .value = {.label = "norm", .scale = Scale::kLog10},
                     .rows = norms.matrix,
                     .row_names = norms.layers,
                     .column_names = norms.steps});
    page.add(HeatMap{.title = run.name + ": share of each layer's gradient that underflows",
                     .value = {.label = "share", .min = 0, .max = most},
                     .rows = underflow.matrix,
                     .caption = "Elements that are not 0 and would be in the run's 16-bit format, "
                                "at its loss scale: bf16, e5m2 under fp8, else fp16.",
                     .row_names = underflow.layers,
                     .column_names = underflow.steps});
    Table table = {
        .columns = {"layer", "largest weight", "largest gradient", "gradient norm", "underflows"},
        .caption = run.name + ", " + norms.steps.back()};
    const Watched weights = watched(run, "weight_amax"), gradients = watched(run, "grad_amax");
    for (size_t i = 0; i < norms.layers.size(); ++i) {
      const auto last = [&](const Watched& w) {
        return i < w.matrix.size() ? last_or_nan(w.matrix[i]) : NAN;
      };
      table.rows.push_back({norms.layers[i], format_number(last(weights)),
                            format_number(last(gradients)), format_number(last(norms)),
                            percent(last(underflow))});
    }
    page.add(table);
  }
  if (!is_there) page.paragraph("No run was trained with --watch.");
}

void add_confusion(Page& page, const RunRecord& run) {
  const train::Findings& found = *run.findings;
  const size_t classes = found.classes.size();
  std::vector<double> images(classes), right(classes);
  struct Mistake {
    int64_t images = 0, predicted = 0;
  };
  std::vector<Mistake> mistakes(classes);
  for (const auto& [pair, count] : found.confusion) {
    const auto label = static_cast<size_t>(pair.first);
    images[label] += static_cast<double>(count);
    if (pair.first == pair.second) {
      right[label] += static_cast<double>(count);
    } else if (count > mistakes[label].images) {
      mistakes[label] = {count, pair.second};
    }
  }
  page.paragraph(fmt::format("{}: {} of {} validation images right, loss {}, after step {}.",
                             run.name, percent(found.accuracy), found.images, fixed(found.loss),
                             found.step));
  if (classes <= kMostDrawnClasses) {
    HeatMap map = {.title = run.name + ": confusion matrix",
                   .x_label = "predicted",
                   .y_label = "label",
                   .value = {.label = "share of the label's images", .min = 0, .max = 1},
                   .row_names = found.classes,
                   .column_names = found.classes};
    map.rows.assign(classes, std::vector<double>(classes, 0));
    if (classes <= kMostWrittenClasses) {
      map.texts.assign(classes, std::vector<std::string>(classes));
      map.caption = "Numbers are images.";
    }
    for (const auto& [pair, count] : found.confusion) {
      const auto label = static_cast<size_t>(pair.first);
      const auto predicted = static_cast<size_t>(pair.second);
      map.rows[label][predicted] = static_cast<double>(count) / images[label];
      if (!map.texts.empty()) map.texts[label][predicted] = fmt::format("{}", count);
    }
    page.add(map);
  }
  std::vector<size_t> order;
  for (size_t i = 0; i < classes; ++i) {
    if (images[i] > 0) order.push_back(i);
  }
  std::ranges::stable_sort(order, {}, [&](size_t i) { return right[i] / images[i]; });
  Table table = {.columns = {"class", "images", "right", "taken most often for", "times"},
                 .caption = "Classes, those with the most mistakes first"};
  for (const size_t i : order) {
    if (table.rows.size() == kMostListedClasses) {
      table.caption += fmt::format("; {} of {}", kMostListedClasses, order.size());
      break;
    }
    const Mistake& worst = mistakes[i];
    table.rows.push_back(
        {found.classes[i], fmt::format("{:.0f}", images[i]), percent(right[i] / images[i]),
         worst.images > 0 ? found.classes[static_cast<size_t>(worst.predicted)] : "",
         worst.images > 0 ? fmt::format("{}", worst.images) : ""});
  }
  page.add(table);
}

void add_findings(Page& page, const Runs& runs) {
  page.heading("Confusion matrix");
  for (const RunRecord& run : runs) {
    if (run.findings) add_confusion(page, run);
  }
  say_what_is_missing(page, runs, &RunRecord::no_findings);
  page.heading("Most-wrong images");
  for (const RunRecord& run : runs) {
    if (!run.findings) continue;
    const train::Findings& found = *run.findings;
    if (found.most_wrong.empty()) {
      page.paragraph(run.name + ": no validation image was taken for another class.");
      continue;
    }
    page.paragraph(run.name + ": validation images by the loss of their label, the worst first.");
    Gallery gallery;
    for (const train::WrongImage& image : found.most_wrong) {
      const auto name = [&](int64_t i) { return found.classes[static_cast<size_t>(i)]; };
      gallery.pictures.push_back(
          {.png = image.png,
           .height = image.height,
           .width = image.width,
           .text = fmt::format("{}\ntaken for {} ({:.0f}%)\nimage {}, loss {:.2f}",
                               name(image.label), name(image.predicted), 100 * image.probability,
                               image.index, image.loss)});
    }
    page.add(gallery);
  }
  say_what_is_missing(page, runs, &RunRecord::no_findings);
}

/// Of several runs the settings that differ; of one those that are not the program's defaults.
void add_settings(Page& page, const Runs& runs) {
  const bool is_one = runs.size() == 1;
  page.heading(is_one ? "Settings" : "Settings that differ");
  say_what_is_missing(page, runs, &RunRecord::no_config);
  std::vector<nlohmann::json> settings;
  Table table = {.columns = {"setting"}};
  for (const RunRecord& run : runs) {
    if (!run.config) continue;
    settings.push_back(to_json(*run.config));
    table.columns.push_back(is_one ? "value" : run.name);
  }
  if (settings.empty()) return;
  if (is_one) {
    settings.push_back(to_json(train::Config()));
    table.columns.emplace_back("default");
  }
  const auto text_of = [](const nlohmann::json& value) {
    return value.is_string() ? value.get<std::string>() : value.dump();
  };
  for (const auto& [key, value] : settings[0].items()) {
    const auto differs = [&, &key = key, &value = value](const nlohmann::json& other) {
      return other.at(key) != value;
    };
    if (std::ranges::none_of(settings, differs)) continue;
    std::vector<std::string> row = {train::option_name(key)};
    for (const nlohmann::json& run : settings) row.push_back(text_of(run.at(key)));
    table.rows.push_back(std::move(row));
  }
  if (table.rows.empty()) {
    page.paragraph(is_one ? "All settings have their defaults." : "The settings are the same.");
    return;
  }
  page.add(table);
  page.paragraph(fmt::format("{} other settings {}.", settings[0].size() - table.rows.size(),
                             is_one ? "have their defaults" : "are the same"));
}

/// The number in "step-1200", "step-1200.1"; -1 for another name.
int64_t step_of(const io::Path& checkpoint) {
  const std::string name = checkpoint.filename().string();
  int64_t step = -1;
  if (name.starts_with("step-")) std::from_chars(name.data() + 5, name.data() + name.size(), step);
  return step;
}

void read_findings(RunRecord& run, const io::Path& directory, bool evaluates) {
  if (run.config && is_of_text(*run.config)) {
    run.no_findings = "a run on text, which has no images to be wrong about";
    return;
  }
  const io::Path file = directory / train::kFindingsFile;
  if (fs::exists(file)) run.findings = train::read_findings(file);
  int64_t last_step = -1;
  try {
    last_step = step_of(train::find_checkpoint(directory));
  } catch (const Error& error) {
    const bool is_damaged = train::holds_checkpoint(directory);
    if (is_damaged) {
      run.no_findings = error.what();
      fmt::print(stderr, "weft: {}\n", error.what());
    } else if (!run.findings) {
      run.no_findings = "no validation.json, and no checkpoint to evaluate";
    }
    return;
  }
  if (run.findings && run.findings->step == last_step) return;
  if (!evaluates) {
    if (!run.findings) run.no_findings = "no validation.json; weft report evaluates the checkpoint";
    return;
  }
  try {
    run.findings = train::evaluate_run(directory);
  } catch (const Error& error) {
    run.findings.reset();
    run.no_findings = fmt::format("the last checkpoint was not evaluated: {}", error.what());
  }
}

}  // namespace

RunRecord read_run(const io::Path& directory, bool evaluates) {
  const io::Path settings = directory / "config.yaml", metrics = directory / "metrics.jsonl";
  WEFT_CHECK(fs::is_directory(directory), "{}: no such directory; expected that of a run",
             directory.string());
  WEFT_CHECK(fs::exists(settings) || fs::exists(metrics) || fs::exists(directory / "latest"),
             "{}: no run: expected config.yaml, metrics.jsonl or a checkpoint in it",
             directory.string());
  RunRecord run;
  run.path = directory.string();
  const io::Path whole = fs::absolute(directory).lexically_normal();
  run.name = (whole.has_filename() ? whole : whole.parent_path()).filename().string();
  if (fs::exists(settings)) {
    run.config = with_file(train::Config(), train::read_config_file(settings.string()));
  } else {
    run.no_config = "no config.yaml in " + run.path;
  }
  if (fs::exists(metrics)) run.metrics = train::read_metrics(metrics);
  if (run.metrics.empty()) {
    run.no_metrics =
        fs::exists(metrics) ? "metrics.jsonl has no row yet" : "no metrics.jsonl in " + run.path;
  }
  read_findings(run, directory, evaluates);
  return run;
}

Page run_page(std::vector<RunRecord> runs) {
  std::map<std::string, int> names;
  for (const RunRecord& run : runs) ++names[run.name];
  for (RunRecord& run : runs) {
    if (names[run.name] > 1) run.name = run.path;
  }
  std::string paths;
  for (const RunRecord& run : runs) paths += (paths.empty() ? "" : ", ") + run.path;
  Page page(runs.size() == 1 ? "Run " + runs[0].name : fmt::format("{} runs", runs.size()), paths);
  add_overview(page, runs);
  add_curve_sections(page, runs);
  add_layers(page, runs);
  add_findings(page, runs);
  add_settings(page, runs);
  return page;
}

}  // namespace weft::report
