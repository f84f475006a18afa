// weft eval: the accuracy of a checkpoint on a data set.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/devices_option.h"
#include "cli/json_line.h"
#include "cli/model_option.h"
#include "cli/run_program.h"
#include "core/parallel.h"
#include "data/sets/open.h"
#include "dist/comm/processes/join.h"
#include "dist/comm/processes/launch.h"
#include "io/progress.h"
#include "kernels/gemm/packed_weights.h"
#include "train/devices.h"
#include "train/precision.h"
#include "train/trained_model.h"

namespace weft::cli {
namespace {

struct Arguments {
  ModelSource source;
  std::string data, precision, matmul_numerics, device;
  int64_t batch_size = 0, limit_batches = 0;
  std::string devices;
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

/// A rank's share of the images of so many batches: whole batches, side by side, so that what is
/// computed is the same on any number of ranks.
data::DatasetPtr share_of(const data::DatasetPtr& all, int64_t batches, int64_t batch_size,
                          int rank, int ranks) {
  const auto begin_of = [&](int64_t r) {
    return std::min(all->size(), batches * r / ranks * batch_size);
  };
  return data::subset(all, begin_of(rank), begin_of(rank + 1));
}

/// The score of all ranks together.
train::Score sum_over(dist::Communicator& world, const train::Score& mine) {
  const auto images = static_cast<double>(mine.examples);
  const Tensor sums =
      Tensor::from(std::vector<double>{mine.loss * images, mine.accuracy * images, images}, {3});
  world.all_reduce(sums).wait();
  const std::vector<double> all = sums.to_vector();
  return {.loss = all[0] / all[2], .accuracy = all[1] / all[2], .examples = std::llround(all[2])};
}

int evaluate(const Arguments& a, const dist::CommunicatorPtr& world) {
  if (a.threads > 0) set_num_threads(a.threads);
  const int rank = world ? world->rank() : 0, ranks = world ? world->size() : 1;
  std::string device = a.device;
  if (ranks > 1) {
    device = to_string(train::Devices(ranks).of_rank(chosen_device(a.device), dist::local_rank()));
  }
  train::TrainedModel trained = load_model(a.source, device);
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
  const data::DatasetPtr all = data::relabel(opened.dataset, trained.classes);
  const int64_t batch_size = a.batch_size > 0 ? a.batch_size : trained.config.batch_size;
  int64_t batches = (all->size() + batch_size - 1) / batch_size;
  if (a.limit_batches > 0) batches = std::min(batches, a.limit_batches);
  const data::DatasetPtr dataset = share_of(all, batches, batch_size, rank, ranks);
  train::Score score;
  if (dataset->size() > 0) {
    data::Loader loader(dataset, {.batch_size = batch_size,
                                  .workers = std::max(1, num_threads()),
                                  .preprocess = trained.preprocess});
    std::optional<io::Progress> progress;
    if (rank == 0) progress.emplace("eval", loader.batches());
    std::optional<kernels::PackedWeights> packed;
    if (a.source.device_map.empty()) packed.emplace();
    score = train::evaluate(trained, loader, {.progress = [&](int64_t done, const train::Score& s) {
                              if (progress) progress->update(done, s.examples, s.loss, s.accuracy);
                              return true;
                            }});
    if (progress) progress->finish();
  }
  if (world) score = sum_over(*world, score);
  if (rank > 0) return 0;
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

/// Each of several devices has all of the model.
void check_whole(const ModelSource& source, int devices) {
  const bool is_whole = source.device_map.empty() && source.max_memory.empty();
  if (devices > 1 && !is_whole) {
    throw UsageError(fmt::format("--devices {} excludes {}, which spreads one model over devices",
                                 devices,
                                 source.device_map.empty() ? "--max-memory" : "--device-map"));
  }
}

int run_eval(const Arguments& a) {
  check_given(a.source);
  as_usage([&] {
    if (!a.data.empty()) data::check_data_spec(a.data);
    if (!a.precision.empty()) train::find_precision(a.precision);
    if (!a.matmul_numerics.empty()) kernels::parse_accumulation(a.matmul_numerics);
  });
  if (!a.source.weights.empty() && a.data.empty()) {
    throw UsageError("--weights needs --data: a file of weights does not say what to measure on");
  }
  const Device device = chosen_device(a.device);
  if (!dist::is_rank()) {
    const int devices = device_count(a.devices, device);
    check_whole(a.source, devices);
    return devices > 1 ? dist::launch({.ranks = devices}, own_command_line()) : evaluate(a, {});
  }
  const dist::CommunicatorPtr world = dist::join_world();
  check_whole(a.source, world->size());
  const int devices = device_count(a.devices, device, world->size());
  if (devices > 0 && devices != world->size()) {
    throw UsageError(fmt::format("--devices {}: {} ranks were started", a.devices, world->size()));
  }
  try {
    return evaluate(a, world);
  } catch (const std::exception& error) {
    world->leave(error.what());  // the others say why, too
    throw;
  }
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
  add_devices_option(command, a.devices,
                     "Number of devices, each with a share of the images and all of the model");
  add_placement_options(command, a.source);
  add_threads_option(command, a.threads);

  command.group("Output");
  command.flag("--json", a.json, kJsonObject);
}

}  // namespace weft::cli
