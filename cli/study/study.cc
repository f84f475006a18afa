// weft study: questions that take many trainings, answered as a table and a page.
//
//   seeds       how much chance there is in a result
//   sweep       what settings do to it
//   batch-size  what large batches cost: steps and samples to a target, accuracy at equal epochs,
//               gradient noise scale, under rules that scale the learning rate
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/json_line.h"
#include "cli/report/html_report.h"
#include "cli/run_settings.h"
#include "cli/study/runs.h"
#include "core/parallel.h"
#include "io/nearest.h"
#include "train/config_yaml.h"

namespace weft::cli {
namespace {

using nlohmann::ordered_json;

struct Arguments {
  RunSettings settings;
  StudyOptions study;
  bool json = false;
  // sweep
  std::vector<std::string> vary;
  // batch-size
  std::vector<int64_t> batches = {32, 64, 128, 256, 512};
  std::vector<std::string> rules = {"none", "linear", "sqrt", "lars", "lamb"};
  double target = 0, lars_lr = 1, lamb_lr = 0.002;
};

/// What a training comes to.
struct Result {
  const char *head, *title, *name, *unit;
  double (*of)(const RunFigures& run);
  double (*at)(const RunFigures::Point& point);
  double factor;  // to the unit
  int digits;
};

double accuracy_of(const RunFigures& run) { return run.accuracy; }

const Result& result_of(const train::Config& config) {
  static const Result accuracy = {
      "accuracy %", "Accuracy on the validation images",
      "accuracy",   "%",
      accuracy_of,  [](const RunFigures::Point& point) { return point.accuracy; },
      100,          2};
  static const Result loss = {"loss",
                              "Loss on the validation text",
                              "loss",
                              "nats a byte",
                              [](const RunFigures& run) { return run.loss; },
                              [](const RunFigures::Point& point) { return point.loss; },
                              1,
                              4};
  return train::is_of_text(config) ? loss : accuracy;
}

/// "Accuracy over steps" of every run, a colour for each cell.
report::LinePlot curves_of(std::span<const Cell> cells, const Result& result) {
  report::LinePlot plot{.title = std::string(result.title) + " over steps",
                        .x = {.label = "steps"},
                        .y = {.label = result.name, .unit = result.unit},
                        .caption = "A line for each seed."};
  for (size_t c = 0; c < cells.size(); ++c) {
    for (const RunFigures& run : cells[c].runs) {
      report::Series series{.name = fmt::format("{}", fmt::join(cells[c].labels, " ")),
                            .mark = report::Mark::kLineAndPoints,
                            .color = static_cast<int>(c % 8),
                            .in_legend = &run == &cells[c].runs[0]};
      for (const RunFigures::Point& point : run.curve) {
        series.x.push_back(static_cast<double>(point.step));
        series.y.push_back(result.factor * result.at(point));
      }
      plot.series.push_back(std::move(series));
    }
  }
  return plot;
}

void print(const report::Table& table) {
  print_table(table, std::vector<size_t>(table.columns.size(), 9), 0);
}

/// Runs the cells; the exit code where the study is to end.
std::optional<int> run_cells(std::vector<Cell>& cells, const Arguments& a) {
  if (train_all(cells, a.study)) return {};
  fmt::print(stderr, "stopped; the same command goes on\n");
  return 130;
}

void finish(const report::Page& page, const Arguments& a) {
  const std::string file = a.study.output + "/study.html";
  page.write(file);
  if (!a.json) fmt::print("\npage       {}\n", file);
}

std::string command_of(const train::Config& config) {
  const std::optional<int64_t> epochs = train::epoch_limit(config);
  return fmt::format("{} on {}, {}{}, seed {} and those behind it", config.model, config.data,
                     epochs ? fmt::format("{} epochs, ", *epochs) : "", config.optimizer,
                     config.seed);
}

int failures(const Cell& cell) {
  return static_cast<int>(std::ranges::count_if(cell.runs, &RunFigures::failed));
}

// Seeds, and settings.

/// "lr=0.1,0.2" as a setting and its values.
std::pair<std::string, std::vector<std::string>> parse_variation(const std::string& text) {
  const size_t equals = text.find('=');
  std::pair<std::string, std::vector<std::string>> result{text.substr(0, equals), {}};
  if (equals != std::string::npos) {
    for (size_t begin = equals + 1; begin <= text.size();) {
      const size_t end = std::min(text.find(',', begin), text.size());
      result.second.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  check_usage(!result.first.empty() && !result.second.empty() && !result.second[0].empty(),
              "--vary: expected SETTING=VALUE,VALUE..., got \"{}\"", text);
  std::ranges::replace(result.first, '-', '_');
  return result;
}

train::Config changed(const train::Config& config, const std::string& key,
                      const std::string& value) {
  return as_usage([&] {
    const nlohmann::json all = to_json(config);
    std::vector<std::string> known;
    for (const auto& [setting, usual] : all.items()) known.push_back(train::option_name(setting));
    WEFT_CHECK(all.contains(key),
               "--vary: there is no setting \"{}\"; weft config show lists them{}",
               train::option_name(key), io::did_you_mean(key, known));
    return with_setting(config, key, value, "--vary", chosen_device(""));
  });
}

int run_sweep(const Arguments& a) {
  const train::Config base = effective(a.settings, chosen_device("")).config;
  std::vector<std::string> columns;
  std::vector<Cell> cells = {{.labels = {}, .config = base, .runs = {}}};
  for (const std::string& text : a.vary) {
    const auto [key, values] = parse_variation(text);
    const std::string name = train::option_name(key);
    check_usage(
        std::ranges::count(columns, name) == 0,
        "--vary: {0} is given twice; expected all of its values at once: --vary {0}=VALUE,...",
        name);
    columns.push_back(name);
    std::vector<Cell> next;
    for (const Cell& cell : cells) {
      for (const std::string& value : values) {
        next.push_back(
            {.labels = cell.labels, .config = changed(cell.config, key, value), .runs = {}});
        next.back().labels.push_back(columns.back() + "=" + value);
      }
    }
    cells = std::move(next);
  }
  const bool is_of_seeds = a.vary.empty();
  if (is_of_seeds) cells[0].labels = {base.recipe.empty() ? base.model : base.recipe};
  if (const auto code = run_cells(cells, a)) return *code;

  const Result& result = result_of(base);
  const bool has_accuracy = result.of == accuracy_of;
  std::vector<std::string> heads = is_of_seeds ? std::vector<std::string>{"run"} : columns;
  heads.insert(heads.end(), {result.head, "lowest", "highest"});
  if (has_accuracy) heads.emplace_back("loss");
  heads.insert(heads.end(), {"runs", "failed"});
  report::Table table = {.columns = heads};
  for (const Cell& cell : cells) {
    const Cell::Spread spread = cell.spread(result.of);
    double lowest = std::numeric_limits<double>::infinity(), highest = -lowest;
    for (const RunFigures& run : cell.runs) {
      if (run.failed) continue;
      lowest = std::min(lowest, result.of(run)), highest = std::max(highest, result.of(run));
    }
    std::vector<std::string> row;
    for (const std::string& label : cell.labels) row.push_back(label.substr(label.find('=') + 1));
    row.push_back(text_of(spread, result.factor, result.digits));
    for (const double x : {lowest, highest}) {
      row.push_back(spread.count > 0 ? fmt::format("{:.{}f}", result.factor * x, result.digits)
                                     : "-");
    }
    if (has_accuracy) {
      row.push_back(text_of(cell.spread([](const RunFigures& run) { return run.loss; }), 1, 4));
    }
    row.insert(row.end(), {fmt::format("{}", cell.runs.size()), fmt::format("{}", failures(cell))});
    table.rows.push_back(row);
    if (!a.json) continue;
    for (const RunFigures& run : cell.runs) {
      print_json({{"labels", cell.labels},
                  {"seed", run.seed},
                  {"failed", run.failed},
                  {"accuracy", run.accuracy},
                  {"loss", run.loss},
                  {"directory", run.directory}});
    }
  }
  if (!a.json) print(table);
  report::Page page(is_of_seeds ? "Seeds" : "Settings", command_of(base));
  page.paragraph(fmt::format(
      "{} in the last validation: mean over the seeds +- their standard deviation.", result.title));
  page.add(table);
  report::BarChart bars{.title = result.title,
                        .x = {.label = "mean over the seeds", .unit = result.unit}};
  bars.groups.push_back({result.name, {}});
  for (const Cell& cell : cells) {
    bars.categories.push_back(fmt::format("{}", fmt::join(cell.labels, " ")));
    bars.groups[0].values.push_back(result.factor * cell.spread(result.of).mean);
  }
  if (!is_of_seeds) page.add(bars);
  page.add(curves_of(cells, result));
  finish(page, a);
  return 0;
}

// Batch sizes.

/// How a rule gets from the learning rate at the base batch to that at another one.
struct Rule {
  const char* name;
  double exponent;                        // of the ratio of the batches
  const char* optimizer = "";             // empty: the run's own
  double Arguments::*own_rate = nullptr;  // at the base batch; null: the run's own
};

const Rule& find_rule(const std::string& name) {
  static const std::vector<Rule> rules = {{"none", 0},
                                          {"linear", 1},  // Goyal et al., arXiv:1706.02677
                                          {"sqrt", 0.5},  // Krizhevsky, arXiv:1404.5997
                                          {"lars", 1, "lars", &Arguments::lars_lr},
                                          {"lamb", 0.5, "lamb", &Arguments::lamb_lr}};
  std::vector<std::string> names;
  for (const Rule& rule : rules) {
    if (rule.name == name) return rule;
    names.emplace_back(rule.name);
  }
  throw UsageError("--rules: \"{}\" is not one of {}{}", name, fmt::join(names, ", "),
                   io::did_you_mean(name, names));
}

/// Batches are those of all devices together. A cell is named by the batch of a step, which
/// accumulates several of them.
std::vector<Cell> batch_cells(const Arguments& a, const train::Config& base, int64_t base_batch) {
  std::vector<Cell> cells;
  for (const std::string& name : a.rules) {
    const Rule& rule = find_rule(name);
    for (const int64_t batch : a.batches) {
      Cell cell{
          .labels = {name, std::to_string(batch * base.accumulate)}, .config = base, .runs = {}};
      train::Config& config = cell.config;
      config.global_batch_size = batch;
      if (rule.own_rate) {
        config.optimizer = rule.optimizer;
        config.lr = a.*rule.own_rate;
      }
      config.lr *=
          std::pow(static_cast<double>(batch) / static_cast<double>(base_batch), rule.exponent);
      as_usage([&] { train::validate(config); });
      cells.push_back(std::move(cell));
    }
  }
  return cells;
}

/// The first step behind an epoch whose accuracy reached the target; NaN: none did.
double steps_to(const RunFigures& run, double target) {
  for (const RunFigures::Point& point : run.curve) {
    if (point.accuracy >= target) return static_cast<double>(point.step);
  }
  return std::numeric_limits<double>::quiet_NaN();
}

/// A whole percentage that half of the cells come to at their end, by their means.
double usual_target(const std::vector<Cell>& cells) {
  std::vector<double> means;
  for (const Cell& cell : cells) {
    const Cell::Spread accuracy = cell.spread(accuracy_of);
    means.push_back(accuracy.count > 0 ? accuracy.mean : 0);
  }
  const auto middle = means.begin() + static_cast<int64_t>(means.size() / 2);
  std::ranges::nth_element(means, middle);
  return std::floor(100 * *middle) / 100;
}

int run_batch_size(const Arguments& a) {
  const train::Config base = effective(a.settings, chosen_device("")).config;
  check_usage(!train::is_of_text(base),
              "study batch-size: {} is text; expected images, with an accuracy to come to",
              base.data);
  check_usage(train::epoch_limit(base).has_value(),
              "study batch-size: --epochs {}: expected a positive number, to compare at",
              base.epochs);
  const nlohmann::json mine = to_json(base), usual = to_json(train::Config());
  for (const char* key : {"max_steps", "max_time", "early_stopping"}) {
    check_usage(mine.at(key) == usual.at(key),
                "study batch-size: --{} {}: it may end a run before its {} epochs, behind which "
                "runs are compared; leave it out",
                train::option_name(key), mine.at(key).dump(), base.epochs);
  }
  const train::Limit& interval = base.val_check_interval;
  check_usage(!interval.count && interval.fraction == 1,
              "study batch-size: --val-check-interval {}: a validation within an epoch is none to "
              "compare at; leave it out, for one behind each epoch",
              mine.at("val_check_interval").dump());
  for (const auto& [option, limit] : {std::pair("limit-batches", base.limit_batches),
                                      {"limit-val-batches", base.limit_val_batches}}) {
    check_usage(!limit.count || limit.is_zero(),
                "study batch-size: --{} {}: as many batches are more images where batches are "
                "larger; expected a fraction, 0.1",
                option, limit.count.value_or(0));
  }
  const int64_t base_batch = base.global_batch_size > 0
                                 ? base.global_batch_size
                                 : base.batch_size * train::sharing_of(base).data_devices();
  std::vector<Cell> cells = batch_cells(a, base, base_batch);
  if (const auto code = run_cells(cells, a)) return *code;
  const double target = a.target > 0 ? a.target : usual_target(cells);
  const auto steps = [&](const RunFigures& run) { return steps_to(run, target); };
  const auto noise = [](const RunFigures& run) { return run.noise_scale; };

  report::Table table = {.columns = {"rule", "batch", "lr", "accuracy %", "steps", "samples",
                                     "reached", "noise scale", "seconds", "failed"}};
  std::map<std::string, std::vector<report::Series>> plots;  // by figure: a series for each rule
  for (size_t c = 0; c < cells.size(); ++c) {
    const Cell& cell = cells[c];
    const int64_t batch = std::stoll(cell.labels[1]);
    const Cell::Spread accuracy = cell.spread(accuracy_of), reached = cell.spread(steps),
                       scale = cell.spread(noise);
    table.rows.push_back(
        {cell.labels[0], cell.labels[1], fmt::format("{:.4g}", cell.config.lr),
         text_of(accuracy, 100), text_of(reached, 1, 0),
         text_of(reached, static_cast<double>(batch), 0),
         fmt::format("{}/{}", reached.count, cell.runs.size()), text_of(scale, 1, 0),
         text_of(cell.spread([](const RunFigures& run) { return run.seconds; }), 1, 1),
         fmt::format("{}", failures(cell))});
    const auto add = [&](const std::string& figure, double value) {
      std::vector<report::Series>& series = plots[figure];
      if (series.empty() || series.back().name != cell.labels[0]) {
        series.push_back({.name = cell.labels[0], .mark = report::Mark::kLineAndPoints});
      }
      series.back().x.push_back(static_cast<double>(batch));
      series.back().y.push_back(value);
    };
    add("accuracy", 100 * accuracy.mean);
    add("steps", reached.mean);
    add("samples", static_cast<double>(batch) * reached.mean);
    add("noise", scale.mean);
    if (!a.json) continue;
    for (const RunFigures& run : cell.runs) {
      const double reached_at = steps(run);
      ordered_json to_target, samples;  // null: it was not reached
      if (std::isfinite(reached_at)) {
        to_target = static_cast<int64_t>(reached_at);
        samples = batch * static_cast<int64_t>(reached_at);
      }
      ordered_json line = {{"rule", cell.labels[0]},
                           {"batch", batch},
                           {"lr", cell.config.lr},
                           {"seed", run.seed},
                           {"failed", run.failed},
                           {"accuracy", run.accuracy},
                           {"target", target},
                           {"steps_to_target", to_target},
                           {"samples_to_target", samples},
                           {"noise_scale", run.noise_scale},
                           {"seconds", run.seconds},
                           {"directory", run.directory}};
      print_json(line);
    }
  }
  if (!a.json) {
    print(table);
    fmt::print(
        "\naccuracy: behind {} epochs, on the validation images. steps, samples: to {:.1f}% behind "
        "an epoch, by the runs that reached it.\nnoise scale: of the gradient at the end, in "
        "images (McCandlish et al., 2018).\n",
        base.epochs, 100 * target);
  }

  report::Page page("Batch sizes", command_of(base));
  page.paragraph(fmt::format(
      "Runs of {} epochs over {} seeds. The learning rate is {:.4g} at a batch of {}, that of LARS "
      "{:.4g}, that of LAMB {:.4g}; none leaves it, linear and LARS multiply it by the ratio of "
      "the batches, sqrt and LAMB by its square root. The target is {:.1f}% on the validation "
      "images, looked at behind each epoch. Means over the seeds +- their standard deviation.",
      base.epochs, a.study.seeds, base.lr, base_batch * base.accumulate, a.lars_lr, a.lamb_lr,
      100 * target));
  page.add(table);
  const report::Axis batch_axis{.label = "batch", .unit = "images", .scale = report::Scale::kLog2};
  const auto plot = [&](const char* title, const std::string& figure, const report::Axis& y,
                        const char* caption) {
    page.add(report::LinePlot{
        .title = title, .x = batch_axis, .y = y, .series = plots[figure], .caption = caption});
  };
  plot("Accuracy at equal epochs", "accuracy", {.label = "accuracy", .unit = "%"},
       "Behind the last epoch.");
  report::Series ideal{.name = "half the steps at twice the batch", .mark = report::Mark::kDashed};
  for (const report::Series& series : plots["steps"]) {
    // Through the first point that there is.
    for (size_t i = 0; i < series.x.size() && ideal.x.empty(); ++i) {
      if (!std::isfinite(series.y[i])) continue;
      for (double batch : series.x) {
        ideal.x.push_back(batch);
        ideal.y.push_back(series.y[i] * series.x[i] / batch);
      }
    }
  }
  if (!ideal.x.empty()) plots["steps"].push_back(ideal);
  plot("Steps to the target", "steps", {.label = "steps", .scale = report::Scale::kLog2},
       "Dashed: perfect scaling.");
  plot("Samples to the target", "samples", {.label = "images", .scale = report::Scale::kLog2},
       "Level where larger batches cost no more images.");
  plot("Gradient noise scale", "noise", {.label = "images", .scale = report::Scale::kLog2},
       "Of the gradient at the end of training: batches well above it save few steps.");
  double least = HUGE_VAL, most = -HUGE_VAL;  // every rule has the same axis
  for (const report::Series& series : curves_of(cells, result_of(base)).series) {
    for (const double y : series.y) {
      if (!std::isfinite(y)) continue;
      least = std::min(least, y);
      most = std::max(most, y);
    }
  }
  for (size_t r = 0; r < a.rules.size(); ++r) {
    const std::span<const Cell> of_rule(cells.begin() + r * a.batches.size(), a.batches.size());
    report::LinePlot curves = curves_of(of_rule, result_of(base));
    curves.title += fmt::format(", {}", a.rules[r]);
    curves.x.scale = report::Scale::kLog2;
    if (least < most) {
      curves.y.min = least;
      curves.y.max = most;
    }
    page.add(curves);
  }
  finish(page, a);
  return 0;
}

Arguments& add_study(Command& parent, Action& action, int (*run)(const Arguments&),
                     const char* name, const char* help,
                     const std::function<void(Command&, Arguments&)>& own) {
  const auto [command, a] = add_command<Arguments>(parent, action, run, name, help);
  command.group("Study");
  own(command, a);
  command.option("--seeds", a.study.seeds, "Trainings of each kind, from as many seeds",
                 {.check = in_range(1, 1000)});
  command.option("--output", a.study.output,
                 "Directory of the runs and the page; a study that was stopped goes on there",
                 {.takes = "DIR", .required = true});
  add_threads_option(command, a.study.threads);
  command.flag("--json", a.json, kJsonLines);
  add_run_settings(command, a.settings);
  return a;
}

}  // namespace

void add_study(Command& app, Action& action) {
  Command& study =
      app.subcommand("study", "Answer a question that takes many trainings", kTrainingCommands);
  study.require_subcommand();
  add_study(study, action, run_sweep, "seeds", "How much chance there is in a result",
            [](Command&, Arguments&) {});
  add_study(study, action, run_sweep, "sweep", "What settings do to a result",
            [](Command& command, Arguments& a) {
              command.option(
                  "--vary", a.vary,
                  "A setting of weft train and its values; given twice, all pairs are tried",
                  {.takes = "SETTING=VALUE,...", .required = true});
            });
  add_study(
      study, action, run_batch_size, "batch-size",
      "What large batches cost, under rules that scale the learning rate",
      [](Command& command, Arguments& a) {
        a.study.measures_noise = true;
        command.option("--batches", a.batches,
                       "Global batches to train with, in images; with --accumulate N a step takes "
                       "N of them",
                       {.check = positive(), .delimiter = ','});
        command.option("--rules", a.rules,
                       "How the learning rate follows the batch: none, linear, sqrt; lars "
                       "and lamb are optimizers of their own",
                       {.delimiter = ','});
        command.option(
            "--target", a.target,
            "Accuracy on the validation images that steps and samples are counted to",
            {.check = in_range(0.0, 1.0), .usual = "what half of the rules and batches come to"});
        command.option("--lars-lr", a.lars_lr, "Learning rate of LARS at the run's own batch",
                       {.check = positive()});
        command.option("--lamb-lr", a.lamb_lr, "Learning rate of LAMB at the run's own batch",
                       {.check = positive()});
      });
}

}  // namespace weft::cli
