// weft eval: the accuracy of a checkpoint on a data set.
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/json_line.h"
#include "cli/model_option.h"
#include "core/parallel.h"
#include "data/sets/open.h"
#include "io/progress.h"
#include "train/precision.h"
#include "train/trained_model.h"

namespace weft::cli {
namespace {

struct Arguments {
  ModelSource source;
  std::string data, precision, matmul_numerics, device;
  int64_t batch_size = 0, limit_batches = 0;
  int threads = 0;
  bool json = false;
};

/// The model of a file that does not name its classes takes the data's, when they are as many.
void name_classes(train::TrainedModel& trained, const data::Dataset& dataset,
                  const std::string& weights) {
  if (train::has_class_names(trained)) return;
  WEFT_CHECK(dataset.class_names().size() == trained.classes.size(),
             "{}: a head of {} classes, the data has {}", weights, trained.classes.size(),
             dataset.class_names().size());
  trained.classes = dataset.class_names();
}

int run_eval(const Arguments& a) {
  check_given(a.source);
  as_usage([&] {
    if (!a.data.empty()) data::check_data_spec(a.data);
    if (!a.precision.empty()) train::find_precision(a.precision);
    if (!a.matmul_numerics.empty()) kernels::parse_accumulation(a.matmul_numerics);
  });
  if (a.threads > 0) set_num_threads(a.threads);
  if (!a.source.weights.empty() && a.data.empty()) {
    throw UsageError("--weights needs --data: a file of weights does not say what to measure on");
  }
  train::TrainedModel trained = load_model(a.source, a.device);
  train::Config& config = trained.config;
  if (!a.matmul_numerics.empty()) config.matmul_numerics = a.matmul_numerics;
  if (!a.precision.empty()) config.precision = train::find_precision(a.precision).name;
  const train::Precision& precision = train::find_precision(config.precision);
  train::check_supported(precision, train::capabilities_of(trained.device));
  train::check_supported(
      precision, train::capabilities_of(kernels::parse_accumulation(config.matmul_numerics)));
  trained.model->to(precision.parameters);
  const std::string spec = a.data.empty() ? trained.config.data : a.data;
  const data::Evaluation opened = data::open_evaluation(spec);
  if (!a.source.weights.empty()) name_classes(trained, *opened.dataset, a.source.weights);
  const data::DatasetPtr dataset = data::relabel(opened.dataset, trained.classes);
  const int64_t batch_size = a.batch_size > 0 ? a.batch_size : trained.config.batch_size;
  data::Loader loader(dataset, {.batch_size = batch_size,
                                .workers = std::max(1, num_threads()),
                                .preprocess = trained.preprocess});
  const int64_t total =
      a.limit_batches > 0 ? std::min(a.limit_batches, loader.batches()) : loader.batches();
  io::Progress progress("eval", total);
  const auto report = [&](int64_t done, const train::Score& s) {
    progress.update(done, s.examples, s.loss, s.accuracy);
    return true;
  };
  const train::Score score =
      train::evaluate(trained, loader, {.limit = a.limit_batches, .progress = report});
  progress.finish();
  if (a.json) {
    print_json({{"event", "done"},
                {"data", spec},
                {"split", opened.split},
                {"images", score.examples},
                {"loss", score.loss},
                {"test_accuracy", score.accuracy}});
  } else {
    fmt::print("{} ({}, {} images): accuracy {:.2f}%, loss {:.4f}\n", spec, opened.split,
               score.examples, 100 * score.accuracy, score.loss);
  }
  return 0;
}

}  // namespace

void add_eval(Command& app, Action& action) {
  const auto [command, a] =
      add_command<Arguments>(app, action, run_eval, "eval",
                             "Measure a trained model's accuracy on a data set", kTrainingCommands);
  command.group("Model and data");
  add_model_options(command, a.source);
  command.option("--data", a.data,
                 "Images to measure on, of their test split where there is one: builtin, "
                 "cifar10:DIR, mnist:DIR or folder:DIR",
                 {.takes = "DATA", .usual = "the data that the model was trained on"});
  command.option("--batch-size", a.batch_size, "Images in one forward pass",
                 {.check = positive(), .usual = "the training's"});
  command.option("--limit-batches", a.limit_batches,
                 "Batches after which the evaluation stops; 0: no limit",
                 {.check = non_negative()});

  command.group("Precision and device");
  command.option("--precision", a.precision,
                 fmt::format("What is computed in which format: {}", train::precision_names()),
                 {.usual = "the training's"});
  command.option("--matmul-numerics", a.matmul_numerics,
                 fmt::format("Arithmetic of matrix products: {}",
                             fmt::join(kernels::accumulation_names(), ", ")),
                 {.usual = "the training's"});
  add_device_option(command, a.device);
  add_placement_options(command, a.source);
  add_threads_option(command, a.threads);

  command.group("Output");
  command.flag("--json", a.json, kJsonObject);
}

}  // namespace weft::cli
