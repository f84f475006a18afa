#include "train/findings.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "autograd/ops.h"
#include "core/parallel.h"
#include "core/transfer.h"
#include "data/sets/open.h"
#include "io/base64.h"
#include "io/checked_json.h"
#include "io/json_field.h"
#include "train/checkpoint.h"
#include "train/trained_model.h"

namespace weft::train {
namespace {

constexpr size_t kMostWrong = 24;  // images that are kept
constexpr int kLargestSide = 96;   // of their pictures, in pixels

data::Image picture_of(const data::Image& image) {
  const int longer = std::max(image.height, image.width);
  if (longer <= kLargestSide) return image;
  const auto reduced = [&](int side) { return std::max(1, side * kLargestSide / longer); };
  return data::resize(image, reduced(image.height), reduced(image.width), data::Filter::kBilinear);
}

}  // namespace

void append_verdicts(std::vector<Verdict>& verdicts, const data::Batch& batch,
                     const Tensor& logits) {
  const NoGrad guard;
  const std::vector<double> log_p = to_device(ops::log_softmax(logits, 1), Device{}).to_vector();
  const std::vector<double> labels = batch.labels.to_vector();
  const auto classes = static_cast<size_t>(logits.size(1));
  for (size_t i = 0; i < labels.size(); ++i) {
    const auto row = std::span(log_p).subspan(i * classes, classes);
    const auto best = std::ranges::max_element(row);  // the first of equals, as argmax
    const auto label = static_cast<int64_t>(labels[i]);
    verdicts.push_back({.batch = batch.index,
                        .row = static_cast<int64_t>(i),
                        .label = label,
                        .predicted = best - row.begin(),
                        .loss = -row[static_cast<size_t>(label)],
                        .probability = std::exp(*best)});
  }
}

Tensor to_rows(const std::vector<Verdict>& verdicts) {
  std::vector<double> rows;
  for (const Verdict& v : verdicts) {
    rows.insert(rows.end(), {static_cast<double>(v.batch), static_cast<double>(v.row),
                             static_cast<double>(v.label), static_cast<double>(v.predicted), v.loss,
                             v.probability});
  }
  return Tensor::from(rows, {static_cast<int64_t>(verdicts.size()), 6});
}

std::vector<Verdict> from_rows(const Tensor& rows) {
  const std::vector<double> all = rows.to_vector();
  std::vector<Verdict> verdicts;
  for (size_t i = 0; i < all.size(); i += 6) {
    const auto whole = [&](size_t k) { return static_cast<int64_t>(all[i + k]); };
    verdicts.push_back({whole(0), whole(1), whole(2), whole(3), all[i + 4], all[i + 5]});
  }
  return verdicts;
}

Findings make_findings(std::vector<Verdict> verdicts, const data::Dataset& dataset) {
  std::ranges::sort(verdicts, {}, [](const Verdict& v) { return std::pair(v.batch, v.row); });
  Findings found;
  found.classes = dataset.class_names();
  found.images = static_cast<int64_t>(verdicts.size());
  WEFT_CHECK(found.images <= dataset.size(), "findings: {} verdicts on {} images", found.images,
             dataset.size());
  int64_t correct = 0;
  for (size_t i = 0; i < verdicts.size(); ++i) {
    const Verdict& v = verdicts[i];
    WEFT_CHECK(v.label == dataset.label(static_cast<int64_t>(i)),
               "findings: image {} is of class {}, its verdict says {}", i,
               dataset.label(static_cast<int64_t>(i)), v.label);
    ++found.confusion[{v.label, v.predicted}];
    found.loss += v.loss / static_cast<double>(found.images);
    correct += v.predicted == v.label;
  }
  if (found.images > 0) {
    found.accuracy = static_cast<double>(correct) / static_cast<double>(found.images);
  }
  std::vector<size_t> wrong;
  for (size_t i = 0; i < verdicts.size(); ++i) {
    if (verdicts[i].predicted != verdicts[i].label) wrong.push_back(i);
  }
  // A loss that is not a number is the worst.
  std::ranges::stable_sort(wrong, std::ranges::greater(), [&](size_t i) {
    return std::isnan(verdicts[i].loss) ? HUGE_VAL : verdicts[i].loss;
  });
  wrong.resize(std::min(wrong.size(), kMostWrong));
  for (const size_t i : wrong) {
    const Verdict& v = verdicts[i];
    const data::Image picture = picture_of(dataset.image(static_cast<int64_t>(i)));
    const std::vector<uint8_t> png = data::encode_png(picture);
    found.most_wrong.push_back({.index = static_cast<int64_t>(i),
                                .label = v.label,
                                .predicted = v.predicted,
                                .loss = v.loss,
                                .probability = v.probability,
                                .height = picture.height,
                                .width = picture.width,
                                .png = std::string(png.begin(), png.end())});
  }
  return found;
}

Findings evaluate_run(const io::Path& run) {
  const io::Path step = find_checkpoint(run);
  const Checkpoint checkpoint = load_checkpoint(step, CheckpointParts::kModel);
  TrainedModel trained = restore_model(checkpoint, step);
  const data::DatasetPtr dataset = data::relabel(
      data::open_data(trained.config.data, trained.config.seed).validation, trained.classes);
  data::Loader loader(dataset, {.batch_size = trained.config.batch_size,
                                .workers = std::max(1, num_threads()),
                                .preprocess = trained.preprocess});
  std::vector<Verdict> verdicts;
  evaluate(trained, loader,
           {.limit = evaluated_batches(trained.config, loader.batches()),
            .each = [&](const data::Batch& batch, const Tensor& logits) {
              append_verdicts(verdicts, batch, logits);
            }});
  Findings found = make_findings(std::move(verdicts), *dataset);
  found.step = checkpoint.step;
  return found;
}

void write_findings(const io::Path& file, const Findings& findings) {
  nlohmann::ordered_json json = {{"step", findings.step},
                                 {"images", findings.images},
                                 {"loss", findings.loss},
                                 {"accuracy", findings.accuracy},
                                 {"classes", findings.classes}};
  // Of many classes most pairs are never met: [label, predicted, images].
  nlohmann::ordered_json& confusion = json["confusion"] = nlohmann::ordered_json::array();
  for (const auto& [pair, images] : findings.confusion) {
    confusion.push_back({pair.first, pair.second, images});
  }
  nlohmann::ordered_json& wrong = json["most_wrong"] = nlohmann::ordered_json::array();
  for (const WrongImage& image : findings.most_wrong) {
    wrong.push_back({{"index", image.index},
                     {"label", image.label},
                     {"predicted", image.predicted},
                     {"loss", image.loss},
                     {"probability", image.probability},
                     {"height", image.height},
                     {"width", image.width},
                     {"png", io::base64(image.png)}});
  }
  io::write_file_atomically(file,
                            [&](io::FileWriter& writer) { writer.write(json.dump() + "\n"); });
}

Findings read_findings(const io::Path& file) {
  const std::string text = io::read_text(file);
  return io::read_at(file.string(), [&] {
    const nlohmann::json json = io::parse_json(text, "findings of a validation");
    // Numbers that are not finite are null in JSON.
    const auto number = [](const nlohmann::json& object, const char* key) {
      return io::field(object, key).is_null() ? NAN : io::field<double>(object, key);
    };
    Findings found = {.step = io::field<int64_t>(json, "step"),
                      .classes = io::field<std::vector<std::string>>(json, "classes"),
                      .images = io::field<int64_t>(json, "images"),
                      .loss = number(json, "loss"),
                      .accuracy = number(json, "accuracy")};
    const auto class_in = [&](int64_t index) {
      WEFT_CHECK(index >= 0 && index < std::ssize(found.classes),
                 "there is no class {} among {} of them", index, found.classes.size());
      return index;
    };
    using Cells = std::vector<std::array<int64_t, 3>>;
    for (const auto& [label, predicted, images] : io::field<Cells>(json, "confusion")) {
      found.confusion[{class_in(label), class_in(predicted)}] = images;
    }
    for (const nlohmann::json& image : io::list_field(json, "most_wrong")) {
      found.most_wrong.push_back({.index = io::field<int64_t>(image, "index"),
                                  .label = class_in(io::field<int64_t>(image, "label")),
                                  .predicted = class_in(io::field<int64_t>(image, "predicted")),
                                  .loss = number(image, "loss"),
                                  .probability = number(image, "probability"),
                                  .height = io::field<int>(image, "height"),
                                  .width = io::field<int>(image, "width"),
                                  .png = io::from_base64(io::field<std::string>(image, "png"))});
    }
    return found;
  });
}

}  // namespace weft::train
