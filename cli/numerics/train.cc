// weft numerics train: the same training in several precisions, and where fp16's gradients vanish.
#include "cli/numerics/train.h"

#include <fmt/core.h>

#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "cli/numerics/numerics.h"
#include "data/sets/open.h"
#include "io/progress.h"
#include "optim/adam.h"
#include "optim/clip.h"
#include "optim/grad_scaler.h"
#include "train/precision.h"

namespace weft::cli {
namespace {

constexpr int kDivergencePoints = 24;

/// Weights and data of one run, all a function of the arguments.
class Trainer {
 public:
  Trainer(const TrainArguments& a, const std::string& name)
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

  TrainStep step() {
    trained_.model->train();
    std::optional<data::Batch> batch = loader_->next();
    if (!batch) batch = loader_->next();  // the next epoch
    WEFT_CHECK(batch, "{} holds no batch of {} images", a_.data, a_.batch_size);
    TrainStep result;
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
    const double norm = scaler_.is_enabled() ? scaler_.unscale(*optimizer_)
                                             : optim::grad_norm(trained_.model->parameters());
    result.skipped = !scaler_.step(*optimizer_, optim::clip_coefficient(norm, 1));
    scaler_.update();
    fp8_.update();
    return result;
  }

  /// Gradients of each product's result on one batch, by hooks on the recorded operations.
  std::vector<GradientCount> gradients(const char* precision_name, double scale) {
    const train::Precision& precision = train::find_precision(precision_name);
    trained_.model->eval();
    loader_->seek({0, 0});
    const std::optional<data::Batch> batch = loader_->next();
    std::vector<GradientCount> counts;
    {
      const train::PrecisionScope scope(precision, accumulation_, &fp8_);
      const Tensor logits = train::forward_logits(*trained_.model, batch->images, precision);
      const Tensor loss = ops::cross_entropy(logits, batch->labels) * (scale * a_.loss_factor);
      std::set<Node*> seen;
      std::vector<Node*> products, stack = {loss.autograd()->grad_fn.get()};
      while (!stack.empty()) {
        Node* const node = stack.back();
        stack.pop_back();
        if (!node || !seen.insert(node).second) continue;
        for (const Edge& edge : node->inputs) stack.push_back(edge.node.get());
        static const std::set<std::string> kProducts = {
            "linear", "linear_gelu", "mlp", "matmul", "conv2d", "attention", "self_attention"};
        if (kProducts.contains(node->name)) products.push_back(node);
      }
      std::ranges::sort(products, {}, &Node::sequence);
      counts.resize(products.size());
      std::map<std::string, int> index;
      for (size_t i = 0; i < products.size(); ++i) {
        Node& node = *products[i];
        counts[i].layer = fmt::format("{} {}", node.name, ++index[node.name]);
        node.hooks.emplace_back(0, [&count = counts[i]](const Tensor& gradient) {
          add(gradient, count);
          return Tensor();
        });
      }
      optimizer_->zero_grad();
      backward(loss);
    }
    return counts;
  }

  train::Score validate() { return train::evaluate(trained_, *validation_loader_, {.limit = 8}); }

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

  const TrainArguments& a_;
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

TrainResult measure(const TrainArguments& a) {
  TrainResult result;
  std::vector<std::vector<double>> reference;
  const int64_t every = std::max<int64_t>(1, a.steps / kDivergencePoints);
  for (const std::string& name : a.precisions) {
    Trainer trainer(a, name);
    TrainRun run = {.name = name};
    io::Progress progress(name, a.steps);
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
      result.gradients = {.scale = a.loss_scale,
                          .f32 = trainer.gradients("fp32", 1),
                          .f16 = trainer.gradients("fp16", 1),
                          .scaled = trainer.gradients("fp16", a.loss_scale)};
    }
    result.runs.push_back(run);
  }
  return result;
}

int run(const TrainArguments& a) {
  as_usage([&] {
    for (const std::string& name : a.precisions) {
      if (name != kUnscaled) train::find_precision(name);
    }
    kernels::parse_accumulation(a.matmul_numerics);
    data::check_data_spec(a.data);
  });
  report_training(measure(a), a);
  return 0;
}

}  // namespace

void add_numerics_train(Command& numerics, Action& action) {
  const auto [command, a] = add_command<TrainArguments>(
      numerics, action, run, "train",
      "Run one training in several precisions: curves, drift, gradients that vanish");
  command.group("Precision");
  command.option("--precisions", a.precisions,
                 fmt::format("Precisions of weft train --precision, and {}; the others are "
                             "compared with the first",
                             kUnscaled),
                 {.usual = fmt::format("fp32,tf32,bf16,fp16,{}", kUnscaled), .delimiter = ','});
  command.option("--matmul-numerics", a.matmul_numerics,
                 "Arithmetic of matrix products, as of weft train");
  command.option("--loss-scale", a.loss_scale, "Loss scale that fp16 begins at",
                 {.check = positive()});
  command.option("--loss-factor", a.loss_factor,
                 "Factor on every run's loss: a small one makes gradients vanish",
                 {.check = positive()});

  command.group("Training");
  command.option("--model", a.model, kModelHelp);
  command.option("--data", a.data, "Images to train on, as of weft train", {.takes = "DATA"});
  command.option("--steps", a.steps, "Optimizer steps of each run",
                 {.check = in_range(1, 1000000)});
  command.option("--batch-size", a.batch_size, "Images in the batch of a step",
                 {.check = in_range(1, 100000)});
  command.option("--lr", a.lr, "Learning rate of AdamW", {.check = positive()});
  command.option("--seed", a.seed, "Seed of weights and data");

  command.group("Output");
  add_output_options(command, a, "Print a JSON object for each step, layer and run");
}

}  // namespace weft::cli
