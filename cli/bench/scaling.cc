// weft bench scaling: how a training step's time and memory grow with what it is given.
//
// One vision transformer, of which one size at a time is varied. Beside each step stand the FLOPs
// of its matrix products and the most memory that it held. The fastest of the timed steps counts,
// for other work on the machine only adds to it. From one size to the next time should grow no
// faster than the FLOPs or, where memory bandwidth is the limit, than the bytes.
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>

#include "cli/bench/bench.h"
#include "cli/device_option.h"
#include "cli/json_line.h"
#include "cli/report/html_report.h"
#include "cli/step/training_step.h"
#include "core/allocator.h"
#include "core/parallel.h"
#include "core/stream.h"
#include "io/progress.h"

namespace weft::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kPatch = 16, kHeadWidth = 64;
constexpr int kWarmUpSteps = 2;
constexpr double kLeastSeconds = 0.3;  // of timed steps: short ones are repeated more often

/// What is varied, from these sizes.
struct Sizes {
  int64_t batch = 4, tokens = 65, width = 192, depth = 2, threads = 0;
};

struct SizeAxis {
  const char* name;
  const char* unit;
  int64_t Sizes::*size;
  std::vector<int64_t> values;
};

/// Tokens are a square of patches and the class token. The threads end with those that there are.
std::vector<SizeAxis> all_axes() {
  std::vector<SizeAxis> axes = {
      {"batch", "images", &Sizes::batch, {1, 2, 4, 8, 16, 32, 64}},
      {"tokens", "tokens an image", &Sizes::tokens, {65, 257, 1025, 4097}},
      {"width", "features", &Sizes::width, {64, 128, 256, 512, 1024}},
      {"depth", "layers", &Sizes::depth, {1, 2, 4, 8, 16}},
      {"threads", "threads", &Sizes::threads, {}},
  };
  const int most = num_threads();
  for (int n = 1; n < most; n *= 2) axes.back().values.push_back(n);
  axes.back().values.push_back(most);
  return axes;
}

struct Arguments {
  std::vector<std::string> axes;
  int64_t most = 0;
  int steps = 5;
  std::string precision = "fp32", device, html;
  bool json = false;
};

struct Point {
  int64_t value = 0;
  double seconds = 0, flops = 0, bytes = 0;
};

Point measure(const Sizes& sizes, int64_t value, const Arguments& a, Device device) {
  StepOptions options{.model = "vit_b_16", .precision = a.precision, .batch = sizes.batch};
  options.device = device;
  const auto patches = static_cast<int64_t>(std::lround(std::sqrt(sizes.tokens - 1)));
  options.options = {.image_size = patches * kPatch,
                     .classes = 10,
                     .layers = sizes.depth,
                     .heads = sizes.width / kHeadWidth,
                     .width = sizes.width,
                     .hidden = 4 * sizes.width};
  TrainingStep step(options);
  const auto seconds_of_step = [&] {
    const Clock::time_point start = Clock::now();
    step.run();
    synchronize(device);
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  for (int i = 0; i < kWarmUpSteps; ++i) seconds_of_step();
  CachingAllocator& memory = allocator(device);
  memory.reset_peak();
  double fastest = seconds_of_step(), total = fastest;
  for (int i = 1; i < a.steps || total < kLeastSeconds; ++i) {
    const double seconds = seconds_of_step();
    fastest = std::min(fastest, seconds);
    total += seconds;
  }
  return {value, fastest,
          3 * step.model().forward_matmul_flops() * static_cast<double>(sizes.batch),
          static_cast<double>(memory.stats().peak_live)};
}

using Quantity = double Point::*;

std::vector<double> values_of(const std::vector<Point>& points, Quantity quantity, double scale) {
  std::vector<double> values;
  for (const Point& point : points) values.push_back(scale * point.*quantity);
  return values;
}

/// p of the power law c value^p that lies nearest in the logarithms (least squares).
double exponent(const std::vector<Point>& points, Quantity quantity) {
  double x_mean = 0, y_mean = 0;
  for (const Point& point : points) {
    x_mean += std::log(static_cast<double>(point.value)) / static_cast<double>(points.size());
    y_mean += std::log(point.*quantity) / static_cast<double>(points.size());
  }
  double xy = 0, xx = 0;
  for (const Point& point : points) {
    const double x = std::log(static_cast<double>(point.value)) - x_mean;
    xy += x * (std::log(point.*quantity) - y_mean);
    xx += x * x;
  }
  return xy / xx;
}

/// By how much the time grows from a to b, over what the FLOPs or the bytes grow by, whichever is
/// more. With threads it is the time that remains over the share of it that should.
double growth_over_work(const SizeAxis& axis, const Point& a, const Point& b) {
  const double time = b.seconds / a.seconds;
  if (axis.size == &Sizes::threads) {
    return time * static_cast<double>(b.value) / static_cast<double>(a.value);
  }
  return time / std::max(b.flops / a.flops, b.bytes / a.bytes);
}

struct Curve {
  SizeAxis axis;
  std::vector<Point> points;

  /// The largest growth_over_work between neighbours; 1 of a single point.
  double worst() const {
    double worst = points.size() < 2 ? 1 : 0;
    for (size_t i = 1; i < points.size(); ++i) {
      worst = std::max(worst, growth_over_work(axis, points[i - 1], points[i]));
    }
    return worst;
  }
};

Curve measure_curve(const SizeAxis& axis, const Arguments& a, Device device,
                    const std::function<void(const Point&)>& report) {
  Curve curve{axis, {}};
  const int threads = num_threads();
  for (const int64_t value : axis.values) {
    if (a.most > 0 && value > a.most) break;
    Sizes sizes;
    sizes.*axis.size = value;
    if (sizes.threads > 0) set_num_threads(static_cast<int>(sizes.threads));
    curve.points.push_back(measure(sizes, value, a, device));
    set_num_threads(threads);
    report(curve.points.back());
  }
  return curve;
}

std::string summary(const Curve& curve) {
  const std::string name = curve.axis.name;
  if (curve.points.size() < 2) return name + ": one size alone";
  const auto power = [&](Quantity quantity) {
    return fmt::format("{}^{:.2f}", name, exponent(curve.points, quantity));
  };
  if (curve.axis.size == &Sizes::threads) {
    const Point &one = curve.points.front(), &all = curve.points.back();
    return fmt::format("{:.2f} times as fast with {} threads as with {}", one.seconds / all.seconds,
                       all.value, one.value);
  }
  return fmt::format(
      "time ~ {}, FLOPs ~ {}, memory ~ {}; from one size to the next time grows at most {:.2f} "
      "times as fast as the work",
      power(&Point::seconds), power(&Point::flops), power(&Point::bytes), curve.worst());
}

nlohmann::ordered_json to_json(const Curve& curve, const Arguments& a) {
  nlohmann::ordered_json points = nlohmann::ordered_json::array();
  for (const Point& point : curve.points) {
    points.push_back({{curve.axis.name, point.value},
                      {"step_ms", 1e3 * point.seconds},
                      {"flops", point.flops},
                      {"peak_bytes", point.bytes}});
  }
  nlohmann::ordered_json json = {
      {"axis", curve.axis.name}, {"precision", a.precision}, {"points", points}};
  if (curve.points.size() > 1) {
    json["exponents"] = {{"time", exponent(curve.points, &Point::seconds)},
                         {"flops", exponent(curve.points, &Point::flops)},
                         {"memory", exponent(curve.points, &Point::bytes)}};
    json["growth_over_work"] = curve.worst();
  }
  return json;
}

void add_plots(report::Page& page, const Curve& curve) {
  using report::Axis, report::LinePlot, report::Mark, report::Scale, report::Series;
  std::vector<double> x;
  for (const Point& point : curve.points) x.push_back(static_cast<double>(point.value));
  const Axis sizes{.label = curve.axis.name, .unit = curve.axis.unit, .scale = Scale::kLog2};
  const std::vector<double> ms = values_of(curve.points, &Point::seconds, 1e3);
  // What the last size's rate would make of the others.
  std::vector<double> in_proportion;
  const Point& last = curve.points.back();
  for (const Point& point : curve.points) {
    const double work = curve.axis.size == &Sizes::threads
                            ? static_cast<double>(last.value) / static_cast<double>(point.value)
                            : point.flops / last.flops;
    in_proportion.push_back(1e3 * last.seconds * work);
  }
  page.heading(curve.axis.name);
  page.paragraph(summary(curve) + ".");
  page.add(LinePlot{.title = fmt::format("Time of a step against {}", curve.axis.name),
                    .x = sizes,
                    .y = {.label = "time of a step", .unit = "ms", .scale = Scale::kLog10},
                    .series = {{.name = "measured", .x = x, .y = ms, .mark = Mark::kLineAndPoints},
                               {.name = "FLOPs at the last size's rate",
                                .x = x,
                                .y = in_proportion,
                                .mark = Mark::kDashed}}});
  page.add(LinePlot{.title = fmt::format("Most memory held against {}", curve.axis.name),
                    .x = sizes,
                    .y = {.label = "memory", .unit = "MB", .scale = Scale::kLog10},
                    .series = {{.name = "measured",
                                .x = x,
                                .y = values_of(curve.points, &Point::bytes, 1e-6),
                                .mark = Mark::kLineAndPoints}}});
}

std::vector<SizeAxis> chosen_axes(const Arguments& a, Device device) {
  const std::vector<SizeAxis> all = all_axes();
  std::vector<SizeAxis> axes;
  for (const SizeAxis& axis : all) {
    const bool is_named = std::ranges::find(a.axes, axis.name) != a.axes.end();
    // A GPU's time does not depend on the threads of the host.
    const bool is_idle = axis.size == &Sizes::threads && device.type != DeviceType::cpu;
    if (is_named || (a.axes.empty() && !is_idle)) axes.push_back(axis);
  }
  return axes;
}

int run(const Arguments& a) {
  const Device device = chosen_device(a.device);
  as_usage([&] {
    train::check_supported(train::find_precision(a.precision), train::capabilities_of(device));
  });
  const Sizes base;
  const std::string what = fmt::format(
      "A vision transformer in {} on {}; {} images, {} tokens, width {}, {} layers, {} threads "
      "where nothing else is said",
      a.precision, to_string(device), base.batch, base.tokens, base.width, base.depth,
      num_threads());
  if (!a.json) fmt::print("{}.\n\n", what);
  report::Page page("How a training step grows", what);
  for (const SizeAxis& axis : chosen_axes(a, device)) {
    io::Table table({{axis.name, 8}, {"step", 11}, {"GFLOP", 9}, {"GFLOP/s", 9}, {"memory", 10}});
    const Curve curve = measure_curve(axis, a, device, [&](const Point& point) {
      if (a.json) return;
      table.row({std::to_string(point.value), fmt::format("{:.2f} ms", 1e3 * point.seconds),
                 fmt::format("{:.2f}", 1e-9 * point.flops),
                 fmt::format("{:.1f}", 1e-9 * point.flops / point.seconds),
                 fmt::format("{:.1f} MB", 1e-6 * point.bytes)});
    });
    if (curve.points.empty()) continue;
    if (a.json) {
      print_json(to_json(curve, a));
    } else {
      fmt::print("{}\n\n", summary(curve));
    }
    add_plots(page, curve);
  }
  if (!a.html.empty()) {
    page.write(a.html);
    fmt::print(a.json ? stderr : stdout, "page written to {}\n", a.html);
  }
  return 0;
}

}  // namespace

void add_bench_scaling(Command& bench, Action& action) {
  const auto [command, a] =
      add_command<Arguments>(bench, action, run, "scaling",
                             "Measure how time and memory grow with batch, tokens, width, ...");
  std::vector<std::string> names;
  for (const SizeAxis& axis : all_axes()) names.push_back(axis.name);
  command.option(
      "--axis", a.axes,
      fmt::format("What to vary, several with commas: {}", fmt::join(names, ", ")),
      {.check = one_of(names), .takes = "NAME", .usual = "all of them", .delimiter = ','});
  command.option("--most", a.most, "Leave out sizes beyond this one",
                 {.check = positive(), .usual = "none left out"});
  command.option("--precision", a.precision,
                 fmt::format("What is computed in which format: {}", train::precision_names()));
  command.option("--steps", a.steps, "Number of timed steps, at least", {.check = positive()});
  add_device_option(command, a.device);
  command.option("--html", a.html, "Write a page of plots to this file", {.takes = "FILE"});
  command.flag("--json", a.json, kJsonLines);
}

}  // namespace weft::cli
