// weft numerics train: the same training in several precisions, and where fp16's gradients vanish.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "cli/numerics.h"
#include "cli/report/html_report.h"
#include "core/error.h"
#include "data/open.h"
#include "optim/adam.h"
#include "optim/clip.h"
#include "optim/grad_scaler.h"
#include "train/precision.h"
#include "train/progress.h"
#include "train/trained_model.h"

namespace weft::cli {
namespace {

/// fp16 without a loss scale: what GradScaler is for.
constexpr const char* kUnscaled = "fp16-unscaled";
constexpr int kDivergencePoints = 24;

struct Arguments {
  std::vector<std::string> precisions = {"fp32", "tf32", "bf16", "fp16", kUnscaled};
  std::string model = "cct", data = "builtin", matmul_numerics = "ieee";
  int64_t steps = 100, batch_size = 32;
  double lr = 1e-3, loss_scale = 65536, loss_factor = 1;
  uint64_t seed = 0;
  std::string html;
  bool json = false;
};

struct Step {
  double loss = 0, accuracy = 0, scale = 1;
  bool skipped = false;
};

struct Run {
  std::string name;
  std::vector<Step> steps;
  std::vector<int64_t> divergence_steps;
  std::vector<double> divergence;  // ||w - w_first|| / ||w_first|| against the first run
  train::Score validation;
  bool diverged = false;  // its loss became infinite or NaN

  int64_t skipped() const {
    return std::ranges::count_if(steps, [](const Step& s) { return s.skipped; });
  }
};

/// What a layer's gradient held, in the dtype in which it flowed.
struct GradientCount {
  std::string layer;
  DType dtype = DType::f32;
  int64_t elements = 0, zero = 0, subnormal = 0, not_finite = 0;

  double share(int64_t count) const {
    return elements > 0 ? static_cast<double>(count) / static_cast<double>(elements) : 0;
  }
};

/// Weights and data of one run, all a function of the arguments.
class Trainer {
 public:
  Trainer(const Arguments& a, const std::string& name)
      : a_(a),
        precision_(train::find_precision(name == kUnscaled ? "fp16" : name)),
        accumulation_(kernels::parse_accumulation(a.matmul_numerics)),
        scaler_({.init_scale = a.loss_scale,
                 .enabled = precision_.scales_loss() && name != kUnscaled}) {
    train::check_supported(precision_, train::capabilities_of(accumulation_));
    train::Config config;
    config.data = a.data;
    config.model = a.model;
    config.precision = std::string(precision_.name);
    config.matmul_numerics = a.matmul_numerics;
    config.batch_size = a.batch_size;
    config.seed = a.seed;
    splits_ = data::open_data(config.data, config.seed);
    const data::ImageFormat format = splits_.train->format();
    const data::Preprocess preprocess = {.size = std::min(format.height, format.width),
                                         .fit = data::Fit::kShorterSide,
                                         .normalization = format.normalization};
    trained_ = train::make_trained_model(config, preprocess, splits_.train->class_names());
    data::LoaderOptions options = {.batch_size = a.batch_size,
                                   .shuffle = true,
                                   .drop_last = true,
                                   .seed = a.seed,
                                   .preprocess = preprocess};
    loader_ = std::make_unique<data::Loader>(splits_.train, options);
    options.shuffle = options.drop_last = false;
    validation_loader_ = std::make_unique<data::Loader>(splits_.validation, options);
    optimizer_ = std::make_unique<optim::AdamW>(trained_.model->named_parameters(),
                                                optim::AdamWOptions{.lr = a.lr});
  }

  Step step() {
    trained_.model->train();
    std::optional<data::Batch> batch = loader_->next();
    if (!batch) batch = loader_->next();  // the next epoch
    WEFT_CHECK(batch, "{} holds no batch of {} images", a_.data, a_.batch_size);
    Step result;
    result.scale = scaler_.get_scale();
    optimizer_->zero_grad();
    {
      const train::PrecisionScope scope(precision_, accumulation_, &fp8_);
      const Tensor logits = train::forward_logits(*trained_.model, batch->images, precision_);
      const Tensor loss = ops::cross_entropy(logits, batch->labels);
      result.loss = loss.item();
      result.accuracy = static_cast<double>(train::count_correct(logits, batch->labels)) /
                        static_cast<double>(batch->size());
      backward(scaler_.scale(a_.loss_factor == 1 ? loss : loss * a_.loss_factor));
    }
    double norm = 0;
    if (scaler_.is_enabled()) {
      norm = scaler_.unscale(*optimizer_);
    } else {
      norm = optim::grad_norm(trained_.model->parameters());
    }
    result.skipped = !scaler_.step(*optimizer_, optim::clip_coefficient(norm, 1));
    scaler_.update();
    fp8_.update();
    return result;
  }

  /// Gradients of each product's result on one batch, by hooks on the recorded operations.
  std::vector<GradientCount> gradients(const train::Precision& precision, double scale) {
    struct Watched {
      Node* node;
      std::shared_ptr<GradientCount> count;
    };
    trained_.model->eval();
    loader_->seek({0, 0});
    const std::optional<data::Batch> batch = loader_->next();
    std::vector<Watched> watched;
    {
      const train::PrecisionScope scope(precision, accumulation_, &fp8_);
      const Tensor logits = train::forward_logits(*trained_.model, batch->images, precision);
      const Tensor loss = ops::cross_entropy(logits, batch->labels) * (scale * a_.loss_factor);
      std::set<Node*> seen;
      std::vector<Node*> stack = {loss.autograd()->grad_fn.get()};
      while (!stack.empty()) {
        Node* const node = stack.back();
        stack.pop_back();
        if (!node || !seen.insert(node).second) continue;
        for (const Edge& edge : node->edges) stack.push_back(edge.node.get());
        static const std::set<std::string> kProducts = {"linear", "matmul", "conv2d", "attention",
                                                        "self_attention"};
        if (!kProducts.contains(node->name)) continue;
        const auto count = std::make_shared<GradientCount>();
        node->hooks.emplace_back(0, [count](const Tensor& gradient) {
          add(gradient, *count);
          return Tensor();
        });
        watched.push_back({node, count});
      }
      std::ranges::sort(watched, {}, [](const Watched& w) { return w.node->sequence; });
      std::map<std::string, int> index;
      for (const Watched& w : watched) {
        w.count->layer = fmt::format("{} {}", w.node->name, ++index[w.node->name]);
      }
      optimizer_->zero_grad();
      backward(loss);
    }
    std::vector<GradientCount> result;
    for (const Watched& w : watched) result.push_back(*w.count);
    return result;
  }

  train::Score validate() { return train::evaluate(trained_, *validation_loader_, 8); }
  double scale() const { return scaler_.get_scale(); }

  std::vector<double> weights() const {
    const NoGrad guard;
    std::vector<double> result;
    for (const Tensor& parameter : trained_.model->parameters()) {
      const std::vector<double> values = parameter.to_vector();
      result.insert(result.end(), values.begin(), values.end());
    }
    return result;
  }

 private:
  static void add(const Tensor& gradient, GradientCount& count) {
    count.dtype = gradient.dtype();
    for (const double x : gradient.to_vector()) {
      ++count.elements;
      count.zero += x == 0;
      count.subnormal += x != 0 && std::abs(x) < 0x1p-14;
      count.not_finite += !std::isfinite(x);
    }
  }

  const Arguments& a_;
  const train::Precision& precision_;
  const kernels::Accumulation accumulation_;
  optim::GradScaler scaler_;
  Fp8Scaling fp8_;
  data::Splits splits_;
  train::TrainedModel trained_;
  std::unique_ptr<data::Loader> loader_, validation_loader_;
  std::unique_ptr<optim::AdamW> optimizer_;
};

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, magnitude = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    magnitude += b[i] * b[i];
  }
  return std::sqrt(difference / magnitude);
}

/// The first run's gradients in f32, and in fp16 without and with a scale, at its last weights.
struct GradientReport {
  double scale = 1;
  std::vector<GradientCount> f32, f16, scaled;
};

struct Result {
  std::vector<Run> runs;
  GradientReport gradients;
};

Result measure(const Arguments& a) {
  Result result;
  std::vector<std::vector<double>> reference;
  const int64_t every = std::max<int64_t>(1, a.steps / kDivergencePoints);
  for (const std::string& name : a.precisions) {
    Trainer trainer(a, name);
    Run run = {.name = name};
    train::Progress progress(name, a.steps);
    for (int64_t i = 0; i < a.steps; ++i) {
      run.steps.push_back(trainer.step());
      if (!std::isfinite(run.steps.back().loss)) {
        run.diverged = true;
        break;
      }
      progress.update(i + 1, (i + 1) * a.batch_size, run.steps.back().loss,
                      run.steps.back().accuracy);
      if ((i + 1) % every != 0) continue;
      const std::vector<double> weights = trainer.weights();
      const size_t point = run.divergence.size();
      if (result.runs.empty()) reference.push_back(weights);
      run.divergence_steps.push_back(i + 1);
      run.divergence.push_back(distance(weights, reference[point]));
    }
    progress.finish();
    run.validation = trainer.validate();
    if (result.runs.empty()) {
      const train::Precision &fp16 = train::find_precision("fp16"),
                             &fp32 = train::find_precision("fp32");
      result.gradients.scale = a.loss_scale;
      result.gradients.f32 = trainer.gradients(fp32, 1);
      result.gradients.f16 = trainer.gradients(fp16, 1);
      result.gradients.scaled = trainer.gradients(fp16, a.loss_scale);
    }
    result.runs.push_back(run);
  }
  return result;
}

// Tables and pages ---------------------------------------------------------------------------

std::vector<std::string> run_cells(const Run& run) {
  const Step& last = run.steps.back();
  double loss = 0;
  const size_t tail = std::min<size_t>(10, run.steps.size());
  for (size_t i = run.steps.size() - tail; i < run.steps.size(); ++i) {
    loss += run.steps[i].loss / static_cast<double>(tail);
  }
  return {run.name,
          run.diverged ? "diverged" : fmt::format("{:.4f}", loss),
          fmt::format("{:.4f}", run.validation.loss),
          fmt::format("{:.1f}%", 100 * run.validation.accuracy),
          run.divergence.empty() ? "-" : fmt::format("{:.2e}", run.divergence.back()),
          fmt::format("{:g}", last.scale),
          std::to_string(run.skipped())};
}

const std::vector<std::string> kRunColumns = {"precision",    "loss, last 10", "val loss",
                                              "val accuracy", "weights apart", "loss scale",
                                              "skipped steps"};

std::vector<std::string> gradient_cells(const GradientReport& g, size_t i) {
  const auto percent = [](double share) {
    return share == 0 ? std::string("0") : fmt::format("{:.3g}%", 100 * share);
  };
  const GradientCount &f32 = g.f32[i], &f16 = g.f16[i], &scaled = g.scaled[i];
  return {f32.layer,
          percent(f32.share(f32.zero)),
          percent(f16.share(f16.zero)),
          percent(f16.share(f16.subnormal)),
          percent(scaled.share(scaled.zero)),
          percent(scaled.share(scaled.subnormal)),
          percent(scaled.share(scaled.not_finite))};
}

std::vector<std::string> gradient_columns(double scale) {
  const std::string scaled = fmt::format("x {:g}", scale);
  return {"gradient of",
          "zero, fp32",
          "zero, fp16",
          "subnormal, fp16",
          "zero, " + scaled,
          "subnormal, " + scaled,
          "infinite or NaN, " + scaled};
}

void print_table(const std::vector<std::string>& columns,
                 const std::vector<std::vector<std::string>>& rows) {
  std::vector<train::Table::Column> headings;
  for (size_t i = 0; i < columns.size(); ++i) {
    size_t width = columns[i].size();
    for (const auto& row : rows) width = std::max(width, row[i].size());
    headings.push_back({columns[i], static_cast<int>(width),
                        i == 0 ? train::Table::Align::kLeft : train::Table::Align::kRight});
  }
  train::Table table(headings);
  for (const auto& row : rows) table.row(row);
}

std::vector<std::vector<std::string>> run_rows(const Result& result) {
  std::vector<std::vector<std::string>> rows;
  for (const Run& run : result.runs) rows.push_back(run_cells(run));
  return rows;
}

std::vector<std::vector<std::string>> gradient_rows(const Result& result) {
  const GradientReport& g = result.gradients;
  std::vector<std::vector<std::string>> rows;
  const size_t layers = std::min({g.f32.size(), g.f16.size(), g.scaled.size()});
  for (size_t i = 0; i < layers; ++i) rows.push_back(gradient_cells(g, i));
  return rows;
}

void print_json(const Result& result) {
  using Json = nlohmann::ordered_json;
  for (const Run& run : result.runs) {
    for (size_t i = 0; i < run.steps.size(); ++i) {
      const Step& s = run.steps[i];
      fmt::print("{}\n", Json({{"run", run.name},
                               {"step", i + 1},
                               {"loss", s.loss},
                               {"accuracy", s.accuracy},
                               {"scale", s.scale},
                               {"skipped", s.skipped}})
                             .dump());
    }
    for (size_t i = 0; i < run.divergence.size(); ++i) {
      fmt::print("{}\n", Json({{"run", run.name},
                               {"step", run.divergence_steps[i]},
                               {"divergence", run.divergence[i]}})
                             .dump());
    }
  }
  const GradientReport& g = result.gradients;
  for (size_t i = 0; i < gradient_rows(result).size(); ++i) {
    fmt::print("{}\n", Json({{"layer", g.f32[i].layer},
                             {"elements", g.f32[i].elements},
                             {"fp32_zero", g.f32[i].share(g.f32[i].zero)},
                             {"fp16_zero", g.f16[i].share(g.f16[i].zero)},
                             {"fp16_subnormal", g.f16[i].share(g.f16[i].subnormal)},
                             {"scale", g.scale},
                             {"scaled_zero", g.scaled[i].share(g.scaled[i].zero)},
                             {"scaled_subnormal", g.scaled[i].share(g.scaled[i].subnormal)},
                             {"scaled_not_finite", g.scaled[i].share(g.scaled[i].not_finite)}})
                           .dump());
  }
  for (const Run& run : result.runs) {
    fmt::print("{}\n", Json({{"run", run.name},
                             {"steps", run.steps.size()},
                             {"diverged", run.diverged},
                             {"skipped", run.skipped()},
                             {"val_loss", run.validation.loss},
                             {"val_accuracy", run.validation.accuracy}})
                           .dump());
  }
}

/// The mean over the last `window` steps, at each step.
report::Series smoothed(const Run& run, double Step::*value, int window) {
  report::Series series = {.name = run.name};
  double sum = 0;
  for (size_t i = 0; i < run.steps.size(); ++i) {
    sum += run.steps[i].*value;
    if (i >= static_cast<size_t>(window)) sum -= run.steps[i - window].*value;
    series.x.push_back(static_cast<double>(i + 1));
    series.y.push_back(sum / static_cast<double>(std::min<size_t>(i + 1, window)));
  }
  return series;
}

void write_page(const Result& result, const Arguments& a) {
  constexpr int kWindow = 10;
  report::Page page(
      "Training in several precisions",
      fmt::format("{} on {}, {} steps of {} images, AdamW with learning rate {:g}, "
                  "seed {}, products in {}",
                  a.model, a.data, a.steps, a.batch_size, a.lr, a.seed, a.matmul_numerics));
  page.paragraph(
      "All runs start from the same weights and see the same images in the same order; only the "
      "arithmetic differs. fp16 scales its loss dynamically, fp16-unscaled does not.");
  const report::Axis steps = {.label = "step"};
  report::LinePlot loss = {.title = "Loss",
                           .x = steps,
                           .y = {.label = "cross-entropy", .unit = "nats"},
                           .caption = fmt::format("Mean over {} steps.", kWindow)};
  report::LinePlot accuracy = {.title = "Training accuracy",
                               .x = steps,
                               .y = {.label = "accuracy", .unit = "share"},
                               .caption = fmt::format("Mean over {} steps.", kWindow)};
  report::LinePlot apart = {
      .title = fmt::format("Distance of the weights from those of {}", result.runs[0].name),
      .x = steps,
      .y = {.label = "||w - w'|| / ||w'||", .scale = report::Scale::kLog10},
      .caption =
          "Training amplifies any difference: what counts is that the losses stay together."};
  report::LinePlot scale = {.title = "Loss scale",
                            .x = steps,
                            .y = {.label = "scale", .scale = report::Scale::kLog2},
                            .caption =
                                "Halved, and the step skipped, when a gradient is infinite; "
                                "doubled after 2000 steps without."};
  int color = 0;
  for (const Run& run : result.runs) {
    for (const auto& [plot, value] :
         {std::pair{&loss, &Step::loss}, {&accuracy, &Step::accuracy}}) {
      report::Series series = smoothed(run, value, kWindow);
      series.color = color;
      plot->series.push_back(series);
    }
    if (color > 0) {
      report::Series series = {.name = run.name, .color = color};
      series.x.assign(run.divergence_steps.begin(), run.divergence_steps.end());
      series.y = run.divergence;
      apart.series.push_back(series);
    }
    if (run.steps.front().scale != 1) {
      report::Series series = {.name = run.name, .color = color};
      for (size_t i = 0; i < run.steps.size(); ++i) {
        series.x.push_back(static_cast<double>(i + 1));
        series.y.push_back(run.steps[i].scale);
      }
      scale.series.push_back(series);
    }
    ++color;
  }
  page.add(loss);
  page.add(accuracy);
  page.add(report::Table{kRunColumns, run_rows(result), "At the end"});
  page.heading("How far apart the runs drift");
  if (!apart.series.empty()) page.add(apart);
  page.heading("Loss scaling");
  if (!scale.series.empty()) page.add(scale);
  page.paragraph(fmt::format(
      "Below: gradients of the result of every product, on one batch, at the last weights of {}. "
      "fp16 holds nothing below 2^-25: a gradient there becomes zero, and whatever would have "
      "flowed on from it is lost. Multiplying the loss by {:g} moves all of them up.",
      result.runs[0].name, a.loss_scale));
  report::BarChart zeros = {
      .title = "Gradients that underflow to zero",
      .x = {.label = "share of elements", .unit = "%", .min = 0, .max = 100},
      .groups = {{"zero in fp32 already", {}},
                 {"zero in fp16", {}},
                 {fmt::format("zero in fp16, loss x {:g}", a.loss_scale), {}}}};
  const GradientReport& g = result.gradients;
  for (size_t i = 0; i < gradient_rows(result).size(); ++i) {
    zeros.categories.push_back(g.f32[i].layer);
    zeros.groups[0].values.push_back(100 * g.f32[i].share(g.f32[i].zero));
    zeros.groups[1].values.push_back(100 * g.f16[i].share(g.f16[i].zero));
    zeros.groups[2].values.push_back(100 * g.scaled[i].share(g.scaled[i].zero));
  }
  page.add(zeros);
  page.add(report::Table{gradient_columns(a.loss_scale), gradient_rows(result),
                         "Shares of the elements; layers in the order of the forward pass"});
  page.heading("Repeat");
  std::string names;
  for (const std::string& name : a.precisions) names += (names.empty() ? "" : ",") + name;
  page.code(
      fmt::format("./weft numerics train --precisions {} --model {} --data {} --steps {} "
                  "--batch-size {} --lr {:g} --seed {} --loss-scale {:g} --loss-factor {:g} "
                  "--matmul-numerics {} --html {}",
                  names, a.model, a.data, a.steps, a.batch_size, a.lr, a.seed, a.loss_scale,
                  a.loss_factor, a.matmul_numerics, a.html));
  page.write(a.html);
}

int run(const Arguments& a) {
  as_usage([&] {
    for (const std::string& name : a.precisions) {
      if (name != kUnscaled) train::find_precision(name);
    }
    kernels::parse_accumulation(a.matmul_numerics);
    data::check_data_spec(a.data);
    return 0;
  });
  const Result result = measure(a);
  if (a.json) {
    print_json(result);
  } else {
    print_table(kRunColumns, run_rows(result));
    fmt::print("\nGradients of each product's result, one batch, last weights of {}:\n",
               result.runs[0].name);
    print_table(gradient_columns(a.loss_scale), gradient_rows(result));
  }
  if (!a.html.empty()) write_page(result, a);
  say_written(a.html, a.json);
  return 0;
}

}  // namespace

void add_numerics_train(CLI::App& numerics, Action& action) {
  CLI::App& command = *numerics.add_subcommand(
      "train", "One training in several precisions: curves, drift, and gradients that vanish");
  const auto a = std::make_shared<Arguments>();
  command
      .add_option("--precisions", a->precisions,
                  fmt::format("Of train --precision, and {}; the first is what others are compared "
                              "with. Default: fp32,tf32,bf16,fp16,{}",
                              kUnscaled, kUnscaled))
      ->delimiter(',');
  command.add_option("--model", a->model, "A model's name")->capture_default_str();
  command.add_option("--data", a->data, "As train --data")->capture_default_str();
  command.add_option("--steps", a->steps, "Of each run")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command.add_option("--batch-size", a->batch_size, "Images a step")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command.add_option("--lr", a->lr, "Learning rate of AdamW")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--loss-scale", a->loss_scale, "At which fp16 begins")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      .add_option("--loss-factor", a->loss_factor,
                  "Multiplies every run's loss: small ones make gradients vanish")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--matmul-numerics", a->matmul_numerics, "As train --matmul-numerics")
      ->capture_default_str();
  command.add_option("--seed", a->seed, "Of weights and data")->capture_default_str();
  command.add_option("--html", a->html, "Write a page to this file");
  command.add_flag("--json", a->json, "Print a JSON object per step, layer and run");
  command.callback([a, &action] { action = [a] { return run(*a); }; });
}

}  // namespace weft::cli
