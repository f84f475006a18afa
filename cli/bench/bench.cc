// weft bench step: one training step, timed beside oneDNN's best time for its matrix products.
//
// A step is zero_grad, forward, loss, backward and AdamW on resident data; its rate counts three
// times the forward pass's matmul FLOPs, recomputation not counted. The yardstick is those FLOPs
// over the sum of oneDNN's best time for each product, forward and for both gradients, with plain
// weights or blocked ones (reordering counted). Both are timed in turn, to see the same machine.
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

#include "autograd/ops.h"
#include "cli/bench/bench.h"
#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/json_line.h"
#include "cli/report/median.h"
#include "cli/step/step_bytes.h"
#include "cli/step/training_step.h"
#include "core/allocator.h"
#include "core/parallel.h"
#include "core/stream.h"
#include "io/progress.h"
#include "kernels/gemm/onednn_matmul.h"
#include "kernels/profile.h"
#include "train/precision.h"
#include "train/pretrained/pretrained.h"

namespace weft::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct Arguments {
  StepOptions step;
  std::string device, weights;
  std::string against;  // another precision, timed in turn
  int steps = 7, threads = 0;
  bool graph = false, json = false, profile = false, bytes = false;
};

constexpr int kWarmUpSteps = 2;

double seconds_of(const std::function<void()>& work) {
  const Clock::time_point start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// One matrix product of a step, timed through oneDNN alone.
class Product {
 public:
  Product(const kernels::MatmulKey& key, double count) : count_(count) {
    keys_.push_back(key);
    // Blocked weights: only one matrix can be reordered ahead of many rows.
    if (key.batch == 1) {
      keys_.push_back(key);
      keys_.back().reorders_b = true;
    }
    times_.resize(keys_.size());
    const auto draw = [](int64_t n, DType dtype) { return ops::cast(ops::randn({n}), dtype); };
    a_ = draw(key.batch * key.m * key.k, key.input);
    b_ = draw(key.batch * key.k * key.n, key.input);
    c_ = Tensor::empty({key.batch * key.m * key.n}, key.output);
  }

  void time() {
    for (size_t i = 0; i < keys_.size(); ++i) {
      const auto run = [&] { kernels::onednn_matmul(keys_[i], a_.raw(), b_.raw(), c_.raw()); };
      if (times_[i].empty()) run();  // creates the primitive
      times_[i].push_back(std::min(seconds_of(run), seconds_of(run)));
    }
  }

  double seconds() const {
    double best = report::median(times_[0]);
    for (const auto& times : times_) best = std::min(best, report::median(times));
    return count_ * best;
  }

 private:
  double count_;
  std::vector<kernels::MatmulKey> keys_;
  std::vector<std::vector<double>> times_;
  Tensor a_, b_, c_;
};

/// The products of a step: forward C = A B^T as linear layers have it, and both gradients.
std::vector<Product> products_of(const models::Classifier& model, int64_t batch, DType dtype) {
  std::vector<Product> products;
  for (const models::Matmul& f : model.forward_matmuls(batch)) {
    kernels::MatmulKey key{
        .input = dtype, .output = dtype, .batch = f.batch, .threads = num_threads()};
    const auto add = [&](int64_t m, int64_t n, int64_t k, bool a_transposed, bool b_transposed,
                         DType output) {
      key.m = m, key.n = n, key.k = k;
      key.a_transposed = a_transposed, key.b_transposed = b_transposed;
      key.output = output;
      products.emplace_back(key, static_cast<double>(f.count));
    };
    add(f.m, f.n, f.k, false, true, dtype);                              // y = x W^T
    add(f.m, f.k, f.n, false, false, dtype);                             // dx = dy W
    add(f.n, f.k, f.m, true, false, f.batch == 1 ? DType::f32 : dtype);  // dW = dy^T x
  }
  return products;
}

void print_profile(const kernels::Profile& profile, double seconds) {
  io::Table table({{"kernel", 100, io::Table::Align::kLeft}, {"calls", 6}, {"ms", 9}, {"share", 7}},
                  stderr);
  for (const auto& row : profile.rows(/*by_problem=*/true)) {
    if (row.seconds < 0.003 * seconds) continue;
    table.row({row.name.substr(0, 100), std::to_string(row.calls),
               fmt::format("{:.2f}", 1e3 * row.seconds),
               fmt::format("{:.1f}%", 100 * row.seconds / seconds)});
  }
  fmt::print(stderr, "kernels {:.2f} ms of a step of {:.2f} ms\n", 1e3 * profile.total_seconds(),
             1e3 * seconds);
}

double megabytes(int64_t bytes) { return 1e-6 * static_cast<double>(bytes); }

nlohmann::ordered_json to_json(const StepBytes& bytes) {
  nlohmann::ordered_json ops = nlohmann::ordered_json::array();
  for (const OpBytes& op : bytes.ops) {
    ops.push_back({{"phase", op.phase},
                   {"op", op.op},
                   {"calls", op.calls},
                   {"kernels", op.kernels},
                   {"moved", op.moved},
                   {"least", op.least}});
  }
  return {{"moved", bytes.moved},
          {"least", bytes.least},
          {"ratio", bytes.ratio()},
          {"kernels", bytes.kernels},
          {"ops", ops}};
}

void print_bytes(const StepBytes& bytes) {
  constexpr double kLeastShare = 0.003;
  io::Table table({{"phase", 8, io::Table::Align::kLeft},
                   {"op", 24, io::Table::Align::kLeft},
                   {"calls", 6},
                   {"kernels", 7},
                   {"MB moved", 9},
                   {"at least", 9},
                   {"times", 6}});
  for (const OpBytes& op : bytes.ops) {
    if (static_cast<double>(op.moved) < kLeastShare * static_cast<double>(bytes.moved)) continue;
    table.row(
        {op.phase, op.op, std::to_string(op.calls), std::to_string(op.kernels),
         fmt::format("{:.1f}", megabytes(op.moved)), fmt::format("{:.1f}", megabytes(op.least)),
         op.least > 0
             ? fmt::format("{:.2f}", static_cast<double>(op.moved) / static_cast<double>(op.least))
             : ""});
  }
  fmt::print("a step moves {:.1f} MB in {} kernels, {:.2f} times the least of {:.1f} MB\n",
             megabytes(bytes.moved), bytes.kernels, bytes.ratio(), megabytes(bytes.least));
}

/// Without a clock: one step, counted.
int run_bytes(const Arguments& a) {
  const StepBytes bytes = count_bytes(a.step);
  if (!a.json) {
    print_bytes(bytes);
    return 0;
  }
  print_json({{"model", a.step.model},
              {"batch", a.step.batch},
              {"precision", a.step.precision},
              {"bytes", to_json(bytes)}});
  return 0;
}

int run_bench(const Arguments& a) {
  if (a.threads > 0) set_num_threads(a.threads);
  const Device device = chosen_device(a.device);
  check_usage(!a.graph || device.type == DeviceType::cuda,
              "--graph: expected a CUDA device, got {}", to_string(device));
  StepOptions options = a.step;
  options.device = device;
  as_usage([&] {
    const auto numerics = kernels::parse_accumulation(options.matmul_numerics);
    for (const std::string& name : {options.precision, a.against}) {
      if (name.empty()) continue;
      train::check_supported(train::find_precision(name), train::capabilities_of(numerics));
    }
  });
  if (a.bytes) return run_bytes(a);
  const auto run = [&](TrainingStep& step) {
    step.run();
    synchronize(device);
  };
  const auto make_step = [&](const std::string& precision) {
    options.precision = precision;
    std::optional<train::Pretrained> weights;  // gone when the model has its own copy
    if (!a.weights.empty()) {
      weights = train::read_pretrained(a.weights);
      if (weights->layer_norm_eps > 0) options.options.layer_norm_eps = weights->layer_norm_eps;
    }
    auto step = std::make_unique<TrainingStep>(options);
    if (weights) {
      for (const std::string& note : train::load_pretrained(step->model(), *weights)) {
        if (precision != a.against) fmt::print(stderr, "weights: {}\n", note);
      }
      weights.reset();
    }
    for (int i = 0; i < kWarmUpSteps; ++i) run(*step);
    return step;
  };
  const auto made = make_step(a.step.precision);
  TrainingStep& step = *made;
  const auto run_step = [&] { run(step); };
  if (a.graph) step.capture();
  CachingAllocator& memory = allocator(device);
  memory.reset_peak();
  run_step();
  const size_t peak_bytes = memory.stats().peak_live;
  const size_t reserved_bytes = memory.stats().peak_reserved;
  if (a.profile) {
    const kernels::Profile profile(device);
    print_profile(profile, seconds_of(run_step));
  }

  const auto other = a.against.empty() ? nullptr : make_step(a.against);
  const double flops = 3 * step.model().forward_matmul_flops() * static_cast<double>(a.step.batch);
  const DType dtype = train::find_precision(a.step.precision).products;
  std::vector<Product> products;
  const bool on_cpu = device.type == DeviceType::cpu;
  // What oneDNN multiplies itself: simulated products have no equal there.
  const bool has_yardstick =
      on_cpu && a.step.matmul_numerics == "ieee" &&
      (dtype == DType::f32 || (dtype == DType::bf16 && kernels::onednn_has_bf16()));
  if (has_yardstick) products = products_of(step.model(), a.step.batch, dtype);
  std::vector<double> times, ratios;
  for (int i = 0; i < a.steps; ++i) {
    times.push_back(seconds_of(run_step));
    if (other) ratios.push_back(seconds_of([&] { run(*other); }) / times.back());
    for (Product& product : products) product.time();
  }
  double gemm_seconds = 0;
  for (const Product& product : products) gemm_seconds += product.seconds();
  const double step_seconds = report::median(times);
  const double tflops = flops / step_seconds * 1e-12;
  const double gemm_tflops = has_yardstick ? flops / gemm_seconds * 1e-12 : 0;
  const double images_per_second = static_cast<double>(a.step.batch) / step_seconds;
  const auto [fastest, slowest] = std::ranges::minmax(times);

  nlohmann::ordered_json result = {
      {"model", a.step.model},
      {"batch", a.step.batch},
      {"precision", a.step.precision},
      {"device", to_string(device)},
      {"matmul_numerics", a.step.matmul_numerics},
      {"graph", a.graph},
      {"threads", num_threads()},
      {"parameters", step.model().num_parameters()},
      {"images_per_second", images_per_second},
      {"step_ms", {{"median", 1e3 * step_seconds}, {"min", 1e3 * fastest}, {"max", 1e3 * slowest}}},
      {"tflops", tflops},
      {"gemm_tflops", gemm_tflops},
      {"gemm_fraction", has_yardstick ? tflops / gemm_tflops : 0},
      {"peak_bytes", peak_bytes},
      {"reserved_bytes", reserved_bytes}};
  if (other) result["speedup"] = {{"against", a.against}, {"median", report::median(ratios)}};
  if (a.json) {
    print_json(result);
    return 0;
  }
  fmt::print("{} ({} parameters), batch {}, {}{}, {}\n", a.step.model,
             step.model().num_parameters(), a.step.batch, a.step.precision,
             a.step.matmul_numerics == "ieee" ? "" : " as on " + a.step.matmul_numerics,
             on_cpu ? fmt::format("{} threads", num_threads())
                    : to_string(device) + (a.graph ? ", one CUDA graph" : ""));
  fmt::print("step {:.1f} ms (min {:.1f}, max {:.1f}), {:.2f} images/s\n", 1e3 * step_seconds,
             1e3 * fastest, 1e3 * slowest, images_per_second);
  fmt::print("{:.3f} TFLOP/s{}\n", tflops,
             has_yardstick ? fmt::format(", {:.0f}% of oneDNN's {:.3f} on the same products",
                                         100 * tflops / gemm_tflops, gemm_tflops)
                           : "");
  if (other) {
    fmt::print("{:.2f} times as fast as {}{}, steps in turn\n", report::median(ratios), a.against,
               a.graph ? " launched kernel by kernel" : "");
  }
  fmt::print("peak memory {:.1f} MB ({:.1f} MB reserved)\n", 1e-6 * static_cast<double>(peak_bytes),
             1e-6 * static_cast<double>(reserved_bytes));
  return 0;
}

}  // namespace

void add_bench(Command& app, Action& action) {
  Command& bench =
      app.subcommand("bench", "Measure training steps: speed, memory, growth, traffic, overlap",
                     kMeasuringCommands);
  bench.require_subcommand();
  add_bench_sharding(bench, action);
  add_bench_overlap(bench, action);
  add_bench_plan(bench, action);
  add_bench_scaling(bench, action);
  const auto [command, a] =
      add_command<Arguments>(bench, action, run_bench, "step",
                             "Time a training step beside oneDNN on its matrix products");
  command.group("Step");
  command.option("--model", a.step.model, kModelHelp);
  command.option("--weights", a.weights,
                 "File of trained weights to start from: a step on them meets other values than "
                 "on random ones, denormals among them",
                 {.takes = "FILE", .usual = "random weights"});
  command.option("--batch-size,--batch", a.step.batch, "Images in the batch",
                 {.check = positive()});
  add_model_size_options(command, a.step.options);

  command.group("Precision and device");
  command.option("--precision", a.step.precision,
                 fmt::format("What is computed in which format: {}", train::precision_names()));
  command.option("--matmul-numerics", a.step.matmul_numerics,
                 fmt::format("Arithmetic of matrix products: {}",
                             fmt::join(kernels::accumulation_names(), ", ")));
  add_device_option(command, a.device);
  add_threads_option(command, a.threads);
  command.flag("--graph", a.graph,
               "Launch the step as one captured CUDA graph; with --against, beside steps that "
               "are not captured");

  command.group("Measurement and output");
  command.option("--against", a.against,
                 "A second precision, whose steps take turns with the first one's; prints the "
                 "speed-up",
                 {.usual = "none"});
  command.option("--steps", a.steps, "Number of timed steps", {.check = positive()});
  command.flag("--profile", a.profile, "Print the time of each kernel, on standard error");
  command.flag("--bytes", a.bytes,
               "Instead of timing, count what a step's kernels move, op by op, against the least "
               "that each op could: what it takes from others and leaves to them; computes nothing",
               {.excludes = {"--graph", "--against", "--profile", "--weights", "--device"}});
  command.flag("--json", a.json, kJsonObject);
}

}  // namespace weft::cli
