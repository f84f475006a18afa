// weft predict: what a checkpoint sees in images.
#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>

#include "autograd/ops.h"
#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/json_line.h"
#include "cli/model_option.h"
#include "core/parallel.h"
#include "data/image.h"
#include "io/progress.h"
#include "kernels/gemm/packed_weights.h"
#include "train/precision.h"

namespace weft::cli {
namespace {

struct Arguments {
  ModelSource source;
  std::string device;
  std::vector<std::string> images;
  uint64_t batch_size = 64;
  int top = 3, threads = 0;
  bool json = false;
};

struct Guess {
  std::string name;
  double probability;
};

/// The most probable classes of each of some files.
std::vector<std::vector<Guess>> predict(train::TrainedModel& trained,
                                        std::span<const std::string> paths, int top) {
  const int64_t size = trained.preprocess.size;
  const Tensor input = Tensor::empty({static_cast<int64_t>(paths.size()), 3, size, size});
  for (size_t i = 0; i < paths.size(); ++i) {
    data::prepare_image(data::read_image(paths[i]), trained.preprocess,
                        input.data<float>() + i * 3 * size * size);
  }
  const Tensor logits = train::classifying_logits(
      trained.config, [&](const Tensor& x) { return (*trained.model)(x); },
      ops::to(input, trained.device));
  const std::vector<double> probabilities = ops::softmax(logits, 1).to_vector();
  const size_t classes = trained.classes.size();
  std::vector<std::vector<Guess>> all(paths.size());
  for (size_t i = 0; i < paths.size(); ++i) {
    const double* const p = &probabilities[i * classes];
    std::vector<size_t> order(classes);
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, [&](size_t a, size_t b) { return p[a] > p[b]; });
    order.resize(std::min(classes, static_cast<size_t>(top)));
    for (const size_t c : order) all[i].push_back({trained.classes[c], p[c]});
  }
  return all;
}

int run_predict(const Arguments& a) {
  check_given(a.source);
  if (a.threads > 0) set_num_threads(a.threads);
  train::TrainedModel trained = load_model(a.source, a.device);
  size_t path_width = 5, class_width = 5;
  for (const std::string& path : a.images) path_width = std::max(path_width, path.size());
  for (const std::string& name : trained.classes) class_width = std::max(class_width, name.size());
  constexpr auto kLeft = io::Table::Align::kLeft;
  io::Table table({{"image", static_cast<int>(path_width), kLeft},
                   {"class", static_cast<int>(class_width), kLeft},
                   {"probability", 11}});
  // For all batches: the weights are cast and packed once.
  const NoGrad guard;
  Fp8Scaling fp8;
  const train::PrecisionScope scope = train::enter_precision(trained.config, fp8);
  std::optional<kernels::PackedWeights> packed;
  if (a.source.device_map.empty()) packed.emplace();
  const std::span<const std::string> images(a.images);
  for (size_t begin = 0; begin < images.size(); begin += a.batch_size) {
    const auto batch = images.subspan(begin, std::min(images.size() - begin, a.batch_size));
    const std::vector<std::vector<Guess>> all = predict(trained, batch, a.top);
    for (size_t i = 0; i < batch.size(); ++i) {
      const std::vector<Guess>& guesses = all[i];
      if (a.json) {
        nlohmann::ordered_json line = {{"image", batch[i]},
                                       {"class", guesses[0].name},
                                       {"probability", guesses[0].probability}};
        for (const Guess& guess : guesses) {
          line["top"].push_back({{"class", guess.name}, {"probability", guess.probability}});
        }
        print_json(line);
        continue;
      }
      for (size_t g = 0; g < guesses.size(); ++g) {
        table.row({g == 0 ? batch[i] : "", guesses[g].name,
                   fmt::format("{:.2f}%", 100 * guesses[g].probability)});
      }
    }
  }
  return 0;
}

}  // namespace

void add_predict(Command& app, Action& action) {
  const auto [command, a] =
      add_command<Arguments>(app, action, run_predict, "predict",
                             "Classify images with a trained model", kTrainingCommands);
  add_model_options(command, a.source);
  command.option("IMAGE", a.images, "JPEG or PNG files to classify", {.required = true});
  command.option("--batch-size", a.batch_size, "Images in one forward pass", {.check = positive()});
  command.option("--top", a.top,
                 "Number of classes to show for each image, the most probable first",
                 {.check = positive()});
  add_device_option(command, a.device);
  add_placement_options(command, a.source);
  add_threads_option(command, a.threads);
  command.flag("--json", a.json, kJsonLines);
}

}  // namespace weft::cli
