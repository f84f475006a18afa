#include "train/findings.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "core/error.h"
#include "tests/json_damage.h"

using namespace weft;
using namespace weft::train;
using Catch::Matchers::Contains;

namespace {

io::Path scratch(const std::string& name) {
  const char* const folder = std::getenv("TEST_TMPDIR");
  return io::Path(folder ? folder : "/tmp") / name;
}

/// Six images of two pixels' height, of classes 0 1 2 0 1 2.
data::DatasetPtr six_images() {
  std::vector<uint8_t> pixels;
  for (int i = 0; i < 6 * 2 * 1 * 3; ++i) pixels.push_back(static_cast<uint8_t>(i));
  return data::memory_dataset({.height = 2, .width = 1}, {"cat", "dog", "<b>"}, pixels,
                              {0, 1, 2, 0, 1, 2});
}

/// What loaders of two ranks would give, the later batch first.
std::vector<Verdict> verdicts() {
  std::vector<Verdict> all;
  const auto batch = [&](int64_t index, const std::vector<float>& logits,
                         const std::vector<int64_t>& labels) {
    const auto n = static_cast<int64_t>(labels.size());
    append_verdicts(all, {.labels = Tensor::from(labels, {n}), .index = index},
                    Tensor::from(logits, {n, 3}));
  };
  batch(1, {0, 0, 5, 0, 1, 0, 0, 9, 0}, {0, 1, 2});
  batch(0, {4, 0, 0, 2, 2, 0, 0, 0, 1}, {0, 1, 2});
  return all;
}

}  // namespace

TEST_CASE("Verdicts add up to a confusion matrix and the images most wrong") {
  const std::vector<Verdict> sent = from_rows(to_rows(verdicts()));
  const data::DatasetPtr dataset = six_images();
  const Findings found = make_findings(sent, *dataset);
  CHECK(found.images == 6);
  CHECK(found.accuracy == Approx(0.5));
  using Pair = std::pair<int64_t, int64_t>;
  CHECK(found.confusion == std::map<Pair, int64_t>{{Pair(0, 0), 1},
                                                   {Pair(1, 0), 1},  // the first of equals
                                                   {Pair(2, 2), 1},
                                                   {Pair(0, 2), 1},
                                                   {Pair(1, 1), 1},
                                                   {Pair(2, 1), 1}});
  REQUIRE(found.most_wrong.size() == 3);
  const WrongImage& worst = found.most_wrong[0];
  CHECK(worst.index == 5);
  CHECK(worst.label == 2);
  CHECK(worst.predicted == 1);
  CHECK(worst.probability == Approx(1 / (1 + 2 * std::exp(-9.0))));
  CHECK(worst.loss == Approx(9 + std::log1p(2 * std::exp(-9.0))));
  CHECK(found.most_wrong[1].index == 3);
  CHECK(found.most_wrong[2].index == 1);
  const auto png = std::as_bytes(std::span(worst.png));
  const data::Image picture =
      data::decode_image({reinterpret_cast<const uint8_t*>(png.data()), png.size()}, "picture");
  CHECK(picture == dataset->image(5));

  auto twice = sent;
  twice.push_back(sent[0]);
  CHECK_THROWS_WITH(make_findings(twice, *dataset), Contains("7 verdicts on 6 images"));
  auto fewer = sent;
  fewer.erase(fewer.begin() + 3);  // the first image's
  CHECK_THROWS_WITH(make_findings(fewer, *dataset), Contains("image 0 is of class 0"));
}

TEST_CASE("Findings come back from their file, which is named where it is damaged") {
  Findings found = make_findings(verdicts(), *six_images());
  found.step = 12;
  found.loss = NAN;
  const io::Path file = scratch("validation.json");
  write_findings(file, found);
  const Findings read = read_findings(file);
  CHECK(read.step == 12);
  CHECK(read.classes == found.classes);
  CHECK(read.images == 6);
  CHECK(std::isnan(read.loss));
  CHECK(read.accuracy == found.accuracy);
  CHECK(read.confusion == found.confusion);
  REQUIRE(read.most_wrong.size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(read.most_wrong[i].png == found.most_wrong[i].png);
    CHECK(read.most_wrong[i].index == found.most_wrong[i].index);
    CHECK(read.most_wrong[i].loss == found.most_wrong[i].loss);
    CHECK(read.most_wrong[i].height == 2);
  }
  const std::string text = io::read_text(file);
  const auto damage = [&](const std::string& what, const std::string& with) {
    std::string damaged = text;
    damaged.replace(damaged.find(what), what.size(), with);
    std::ofstream(file) << damaged;
    try {
      read_findings(file);
    } catch (const Error& error) {
      CHECK_THAT(error.what(), Contains(file.string() + ": "));
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_THAT(damage("\"confusion\":[[0", "\"confusion\":[[7"), Contains("no class 7 among 3"));
  CHECK_THAT(damage("\"step\"", "\"stop\""), Contains("\"step\" is missing"));
  CHECK_THAT(damage("\"png\":\"", "\"png\":\"<"), Contains("base64"));
  CHECK_THAT(damage("{\"step\"", std::string(80'000, '[')), Contains("nested more than 32 deep"));
  // Nothing of what the file holds is told at length.
  CHECK(damage("\"step\":", "\"step\":?" + std::string(10'000, 'x')).size() < 500);
  for (size_t size = 0; size + 2 < text.size(); ++size) {
    std::ofstream(file) << text.substr(0, size);
    CHECK_THROWS_WITH(read_findings(file), Contains(file.string()));
  }
  int errors = 0;
  for_each_damage(nlohmann::json::parse(text), [&](const nlohmann::json& damaged,
                                                   const std::string& key) {
    std::ofstream(file) << damaged;
    INFO(damaged.dump());
    try {
      read_findings(file);
    } catch (const Error& error) {
      ++errors;
      CHECK_THAT(error.what(), Contains(file.string()) && (Contains(key) || Contains("no class") ||
                                                           Contains("an object with \"index\"")));
    }
  });
  CHECK(errors > 50);
}
