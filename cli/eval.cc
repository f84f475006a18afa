// weft eval: the accuracy of a checkpoint on a data set, or a language model's loss on text.
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
#include "data/sets/open_text.h"
#include "data/tensors/text_windows.h"
#include "dist/comm/agreement.h"
#include "dist/comm/processes/join.h"
#include "dist/comm/processes/launch.h"
#include "io/progress.h"
#include "kernels/gemm/packed_weights.h"
#include "train/checkpoint.h"
#include "train/devices.h"
#include "train/precision.h"
#include "train/runs/text_model.h"
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

/// This process among those that share the work.
struct Ranks {
  dist::CommunicatorPtr world = {};  // null: it is alone
  int mine = 0, count = 1;
};

/// Several ranks take the devices of their numbers.
std::string device_of(const Arguments& a, const Ranks& ranks) {
  if (ranks.count == 1) return a.device;
  return to_string(
      train::Devices(ranks.count).of_rank(chosen_device(a.device), dist::local_rank()));
}

/// The model of a file that does not name its classes takes the data's, when they are as many.
void name_classes(train::TrainedModel& trained, const data::Dataset& dataset,
                  const std::string& weights) {
  if (train::has_class_names(trained)) return;
  WEFT_CHECK(dataset.class_names().size() == trained.classes.size(),
             "{}: a head of {} classes, the data has {}", weights, trained.classes.size(),
             dataset.class_names().size());
  trained.classes = dataset.class_names();
}

/// Which of so many samples a rank takes: whole batches, side by side, so that what is computed is
/// the same on any number of ranks.
struct Share {
  int64_t begin = 0, end = 0;
};
Share share_of(int64_t samples, int64_t batch_size, int64_t limit, const Ranks& ranks) {
  int64_t batches = samples / batch_size + (samples % batch_size != 0);
  if (limit > 0) batches = std::min(batches, limit);
  const auto begin_of = [&](int64_t r) {
    return std::min(samples, batches * r / ranks.count * batch_size);
  };
  return {begin_of(ranks.mine), begin_of(ranks.mine + 1)};
}

std::vector<double> sum_over(const Ranks& ranks, const std::vector<double>& mine) {
  if (!ranks.world) return mine;
  const Tensor sums = Tensor::from(mine, {static_cast<int64_t>(mine.size())});
  ranks.world->all_reduce(sums).wait();
  return sums.to_vector();
}

/// What the command line says of a model's arithmetic; throws Error where it cannot be.
void set_arithmetic(const Arguments& a, train::Config& config, nn::Module& model, Device device) {
  if (!a.matmul_numerics.empty()) config.matmul_numerics = a.matmul_numerics;
  if (!a.precision.empty()) config.precision = train::find_precision(a.precision).name;
  const train::Precision& precision = train::find_precision(config.precision);
  train::check_supported(precision, train::capabilities_of(device));
  train::check_supported(
      precision, train::capabilities_of(kernels::parse_accumulation(config.matmul_numerics)));
  model.to(precision.parameters);
}

int evaluate_images(const Arguments& a, const Ranks& ranks) {
  train::TrainedModel trained = load_model(a.source, device_of(a, ranks));
  set_arithmetic(a, trained.config, *trained.model, trained.device);
  const std::string spec = a.data.empty() ? trained.config.data : a.data;
  const data::Evaluation opened = data::open_evaluation(spec);
  if (const std::string line = opened.dataset->left_out(); !line.empty() && ranks.mine == 0) {
    fmt::print(stderr, "weft: note: {}\n", line);
  }
  if (!a.source.weights.empty()) name_classes(trained, *opened.dataset, a.source.weights);
  const data::DatasetPtr all = data::relabel(opened.dataset, trained.classes);
  const int64_t batch_size = a.batch_size > 0 ? a.batch_size : trained.config.batch_size;
  const auto [begin, end] = share_of(all->size(), batch_size, a.limit_batches, ranks);
  const data::DatasetPtr dataset = data::subset(all, begin, end);
  train::Score score;
  if (dataset->size() > 0) {
    data::Loader loader(dataset, {.batch_size = batch_size,
                                  .workers = std::max(1, num_threads()),
                                  .preprocess = trained.preprocess});
    std::optional<io::Progress> progress;
    if (ranks.mine == 0) progress.emplace("eval", loader.batches());
    std::optional<kernels::PackedWeights> packed;
    if (a.source.device_map.empty()) packed.emplace();
    score = train::evaluate(trained, loader, {.progress = [&](int64_t done, const train::Score& s) {
                              if (progress) progress->update(done, s.examples, s.loss, s.accuracy);
                              return true;
                            }});
    if (progress) progress->finish();
  }
  if (ranks.world) {
    const auto n = static_cast<double>(score.examples);
    const std::vector<double> sums = sum_over(ranks, {score.loss * n, score.accuracy * n, n});
    score = {sums[0] / sums[2], sums[1] / sums[2], std::llround(sums[2])};
  }
  if (ranks.mine > 0) return 0;
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

int evaluate_text(const Arguments& a, const Ranks& ranks) {
  const Device device = chosen_device(device_of(a, ranks));
  train::TextModel text = a.source.weights.empty() ? train::load_text_model(a.source.checkpoint)
                                                   : train::load_text_weights(a.source.weights);
  set_arithmetic(a, text.config, *text.model, device);
  text.model->to(device);
  const std::string spec = a.data.empty() ? text.config.data : a.data;
  const int64_t context = text.model->config.context;
  data::TextSplits splits = data::open_text(spec, context);
  // Of a text that the model was trained on, or that is made, what tests; of another one all.
  const bool has_test = spec == text.config.data || splits.entropy.has_value();
  data::Bytes bytes = std::move(has_test ? splits.test : splits.train);
  if (!has_test) {
    for (const data::Bytes* rest : {&splits.validation, &splits.test}) {
      bytes.insert(bytes.end(), rest->begin(), rest->end());
    }
  }
  const data::WindowDataset windows(bytes, context);
  const int64_t batch_size = a.batch_size > 0 ? a.batch_size : text.config.batch_size;
  const auto [begin, end] = share_of(windows.size(), batch_size, a.limit_batches, ranks);
  const auto mine = static_cast<double>(end - begin);
  double loss = 0;
  if (begin < end) {
    std::optional<io::Progress> progress;
    if (ranks.mine == 0)
      progress.emplace("eval", end - begin, io::ProgressOptions{.unit = "windows"});
    const kernels::PackedWeights packed;
    loss = train::evaluate_text(text, windows, begin, end, batch_size,
                                [&](int64_t done, double so_far) {
                                  if (progress) progress->update(done, done, so_far);
                                });
    if (progress) progress->finish();
  }
  const std::vector<double> sums = sum_over(ranks, {loss * mine, mine});
  if (ranks.mine > 0) return 0;
  loss = sums[0] / sums[1];
  const int64_t counted = std::llround(sums[1]) * (context / 2);
  const double bits = loss / std::log(2), perplexity = std::exp(loss);
  const char* const split = has_test ? "test" : "all";
  if (a.json) {
    nlohmann::ordered_json done = {{"event", "done"},       {"data", spec},
                                   {"split", split},        {"bytes", counted},
                                   {"loss", loss},          {"perplexity", perplexity},
                                   {"bits_per_byte", bits}, {"entropy", nullptr}};
    if (splits.entropy) done["entropy"] = *splits.entropy;
    print_json(done);
  } else {
    fmt::print(
        "{} ({}, {} bytes): loss {:.4f} nats a byte, perplexity {:.4f}, {:.4f} bits a byte{}\n",
        spec, split, counted, loss, perplexity, bits,
        splits.entropy ? fmt::format("; the text's entropy is {:.4f} nats", *splits.entropy) : "");
  }
  return 0;
}

/// Whether a language model is measured, on text: what the data are, or the run's.
bool is_of_text(const Arguments& a) {
  return a.source.checkpoint.empty() ? data::is_text(a.data)
                                     : train::is_run_on_text(a.source.checkpoint);
}

int evaluate(const Arguments& a, const dist::CommunicatorPtr& world) {
  if (a.threads > 0) set_num_threads(a.threads);
  const Ranks ranks = world ? Ranks{world, world->rank(), world->size()} : Ranks{};
  if (world && !a.source.checkpoint.empty()) {
    const io::Path step = train::find_checkpoint(a.source.checkpoint);
    const std::string state = io::read_text(step / "state.json");
    dist::verify_same_lines(
        *world,
        fmt::format("{} of checksum {}\n", step.filename().string(), io::checksum_of(state)),
        "the ranks were given different checkpoints");
  }
  if (!is_of_text(a)) return evaluate_images(a, ranks);
  check_usage(a.source.device_map.empty() && a.source.max_memory.empty(),
              "{} spreads a model of images; expected a language model on one device",
              a.source.device_map.empty() ? "--max-memory" : "--device-map");
  return evaluate_text(a, ranks);
}

/// Each of several devices has all of the model.
void check_whole(const ModelSource& source, int devices) {
  const bool is_whole = source.device_map.empty() && source.max_memory.empty();
  check_usage(devices <= 1 || is_whole,
              "--devices {} excludes {}, which spreads one model over devices", devices,
              source.device_map.empty() ? "--max-memory" : "--device-map");
}

int run_eval(const Arguments& a) {
  check_given(a.source);
  as_usage([&] {
    if (!a.data.empty() && !data::is_text(a.data)) data::check_data_spec(a.data);
    if (!a.precision.empty()) train::find_precision(a.precision);
    if (!a.matmul_numerics.empty()) kernels::parse_accumulation(a.matmul_numerics);
  });
  check_usage(a.source.weights.empty() || !a.data.empty(),
              "--weights needs --data: a file of weights does not say what to measure on");
  const Device device = chosen_device(a.device);
  if (!dist::is_rank()) {
    const int devices = device_count(a.devices, device);
    check_whole(a.source, devices);
    return devices > 1 ? dist::launch({.ranks = devices}, own_command_line()) : evaluate(a, {});
  }
  const dist::CommunicatorPtr world = dist::join_world();
  check_whole(a.source, world->size());
  const int devices = device_count(a.devices, device, world->size());
  check_usage(devices == 0 || devices == world->size(), "--devices {}: {} ranks were started",
              a.devices, world->size());
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
                             "Measure a trained model: its accuracy on images, or its loss, "
                             "perplexity and bits a byte on text",
                             kTrainingCommands);
  command.group("Model and data");
  add_model_options(command, a.source);
  command.option("--data", a.data,
                 "Images or text to measure on, of their test split where there is one: builtin, "
                 "cifar10:DIR, mnist:DIR or folder:DIR; grammar, text:FILE or FILE.txt",
                 {.takes = "DATA", .usual = "the data that the model was trained on"});
  command.option("--batch-size", a.batch_size, "Images, or windows of text, in one forward pass",
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
                     "Number of devices, each with a share of the data and all of the model");
  add_placement_options(command, a.source);
  add_threads_option(command, a.threads);

  command.group("Output");
  command.flag("--json", a.json, kJsonObject);
}

}  // namespace weft::cli
