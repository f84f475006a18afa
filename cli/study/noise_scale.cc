#include "cli/study/noise_scale.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "core/parallel.h"
#include "data/loader.h"
#include "data/sets/open.h"
#include "io/files.h"
#include "optim/clip.h"
#include "train/trained_model.h"

namespace weft::cli {
namespace {

double square_of_gradients(const Tensors& parameters) {
  const double norm = optim::grad_norm(parameters);
  return norm * norm;
}

double measure(const std::string& directory, int64_t batches, int64_t images) {
  train::TrainedModel trained = train::load_trained_model(directory);
  const data::Splits splits = data::open_data(trained.config.data, trained.config.seed);
  images = std::min(images, splits.train->size() / 2);  // two batches, at the least
  data::Loader loader(splits.train, {.batch_size = images,
                                     .shuffle = true,
                                     .drop_last = true,
                                     .seed = trained.config.seed,
                                     .workers = std::max(1, num_threads()),
                                     .preprocess = trained.preprocess});
  batches = std::min(batches, loader.batches());
  trained.model->train(false);
  const Tensors parameters = trained.model->parameters();
  Tensors sums(parameters.size());
  double squares = 0;
  for (int64_t i = 0; i < batches; ++i) {
    const data::Batch batch = *loader.next();
    trained.model->zero_grad();
    backward(ops::cross_entropy((*trained.model)(batch.images), batch.labels));
    squares += square_of_gradients(parameters);
    const NoGrad guard;
    for (size_t p = 0; p < parameters.size(); ++p) {
      const Tensor gradient = parameters[p].grad();
      if (!gradient.defined()) continue;
      if (sums[p].defined()) {
        ops::add_(sums[p], gradient);
      } else {
        sums[p] = ops::clone(gradient);
      }
    }
  }
  for (size_t p = 0; p < parameters.size(); ++p) parameters[p].set_grad(sums[p]);
  const auto count = static_cast<double>(batches), size = static_cast<double>(images);
  return noise_scale({size, squares / count},
                     {count * size, square_of_gradients(parameters) / (count * count)});
}

}  // namespace

double noise_scale(const GradientSquare& small, const GradientSquare& large) {
  WEFT_CHECK(small.images > 0 && small.images < large.images,
             "noise scale: expected batches of two sizes, the smaller first, got {} and {}",
             small.images, large.images);
  const double signal =
      (large.images * large.square - small.images * small.square) / (large.images - small.images);
  const double noise = (small.square - large.square) / (1 / small.images - 1 / large.images);
  if (signal <= 0) return std::numeric_limits<double>::quiet_NaN();
  return std::max(0.0, noise) / signal;
}

double noise_scale_of_run(const std::string& directory, int64_t batches, int64_t images) {
  const std::string kept = directory + "/noise_scale.json";
  if (std::ifstream file(kept); file) {
    const nlohmann::json value = nlohmann::json::parse(file, nullptr, false);
    WEFT_CHECK(value.is_object() && value.contains("images") &&
                   (value["images"].is_number() || value["images"].is_null()),
               "{}: expected an object with a number of images", kept);
    return value["images"].is_null() ? std::numeric_limits<double>::quiet_NaN()
                                     : value["images"].get<double>();
  }
  const double scale = measure(directory, batches, images);
  io::write_file_atomically(kept, [&](io::FileWriter& file) {
    file.write(nlohmann::json{{"images", scale}}.dump() + "\n");  // NaN is null
  });
  return scale;
}

}  // namespace weft::cli
