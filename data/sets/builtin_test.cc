// The built-in images are the same on any number of threads, and not trivially separable: three
// classifiers that know nothing of shape stay far below what a vision transformer reaches.
#include "data/sets/sets.h"

// Eigen's own threads would wait for one another at every small product.
#define EIGEN_DONT_PARALLELIZE

#include <catch2/catch.hpp>
#include <eigen3/Eigen/Core>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/parallel.h"
#include "data/fixtures.h"
#include "data/random.h"

namespace weft::data {
namespace {

constexpr int kClasses = 10;

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Rows of features with their labels.
struct Samples {
  Matrix x;
  std::vector<int64_t> y;
};

Samples pixels_of(const Dataset& set, int64_t count) {
  Samples samples{Matrix(count, 3072), {}};
  for (int64_t i = 0; i < count; ++i) {
    const Example example = set.example(i);
    for (int k = 0; k < 3072; ++k) {
      samples.x(i, k) = static_cast<float>(example.image.pixels[k]) / 255 - 0.5f;
    }
    samples.y.push_back(example.label);
  }
  return samples;
}

// Square roots of the shares of 6 x 6 x 6 cells of the colour cube.
Samples histograms_of(const Dataset& set, int64_t count) {
  Samples samples{Matrix::Zero(count, 216), {}};
  for (int64_t i = 0; i < count; ++i) {
    const Example example = set.example(i);
    for (int p = 0; p < 1024; ++p) {
      const uint8_t* rgb = &example.image.pixels[3 * p];
      samples.x(i, rgb[0] * 6 / 256 * 36 + rgb[1] * 6 / 256 * 6 + rgb[2] * 6 / 256) += 1.0f / 1024;
    }
    samples.y.push_back(example.label);
  }
  samples.x = samples.x.cwiseSqrt();
  return samples;
}

double accuracy(const std::vector<int64_t>& found, const std::vector<int64_t>& expected) {
  int right = 0;
  for (size_t i = 0; i < found.size(); ++i) right += found[i] == expected[i];
  return static_cast<double>(right) / static_cast<double>(found.size());
}

// Softmax regression by stochastic gradient descent with momentum: the accuracy on `test`.
double linear_accuracy(const Samples& train, const Samples& test, float rate, int epochs) {
  constexpr int kBatch = 50;
  const int64_t features = train.x.cols(), steps = train.x.rows() / kBatch;
  Matrix weight = Matrix::Zero(features, kClasses), velocity = weight;
  Eigen::RowVectorXf bias = Eigen::RowVectorXf::Zero(kClasses);
  for (int epoch = 0; epoch < epochs; ++epoch) {
    const float now = rate * (1 - static_cast<float>(epoch) / static_cast<float>(epochs));
    for (int64_t step = 0; step < steps; ++step) {
      const auto x = train.x.middleRows(step * kBatch, kBatch);
      Matrix p = ((x * weight).rowwise() + bias).array().exp();
      for (int i = 0; i < kBatch; ++i) {
        p.row(i) /= p.row(i).sum();
        p(i, train.y[step * kBatch + i]) -= 1;
      }
      velocity = 0.9f * velocity - now / kBatch * (x.transpose() * p);
      weight += velocity;
      bias -= now / kBatch * p.colwise().sum();
    }
  }
  const Matrix scores = (test.x * weight).rowwise() + bias;
  std::vector<int64_t> found(test.y.size());
  for (int64_t i = 0; i < scores.rows(); ++i) scores.row(i).maxCoeff(&found[i]);
  return accuracy(found, test.y);
}

double nearest_neighbour_accuracy(const Samples& train, const Samples& test) {
  const Eigen::RowVectorXf norms = train.x.rowwise().squaredNorm().transpose();
  std::vector<int64_t> found(test.y.size());
  parallel_for(test.x.rows(), 50, [&](int64_t begin, int64_t end) {
    const Matrix distance =
        (-2 * test.x.middleRows(begin, end - begin) * train.x.transpose()).rowwise() + norms;
    for (int64_t i = begin; i < end; ++i) {
      Eigen::Index nearest;
      distance.row(i - begin).minCoeff(&nearest);
      found[i] = train.y[nearest];
    }
  });
  return accuracy(found, test.y);
}

TEST_CASE("the classifiers of this test learn what they can") {
  const auto shades = [](int64_t count, uint64_t stream) {
    Philox random(1, stream);
    Samples samples{Matrix(count, 40), {}};
    for (int64_t i = 0; i < count; ++i) {
      samples.y.push_back(i % kClasses);
      for (int k = 0; k < 40; ++k) {
        samples.x(i, k) =
            0.3f * static_cast<float>(random.normal()) + (k % kClasses == i % kClasses);
      }
    }
    return samples;
  };
  CHECK(linear_accuracy(shades(1000, 1), shades(500, 2), 0.1f, 10) > 0.98);
  CHECK(nearest_neighbour_accuracy(shades(1000, 1), shades(500, 2)) > 0.98);
}

TEST_CASE("neither pixels, neighbours nor colours tell the classes apart") {
  const DatasetPtr train = builtin_images(Part::kTrain);
  const DatasetPtr test = builtin_images(Part::kTest);
  const auto report = [](const char* classifier, double accuracy) {
    std::printf("builtin: %s %.1f%%\n", classifier, 100 * accuracy);
    CAPTURE(classifier);
    CHECK(accuracy < 0.4);
  };
  {
    const Samples x = pixels_of(*train, 12000), t = pixels_of(*test, 2000);
    report("linear on pixels", linear_accuracy(x, t, 0.003f, 5));
    const Samples sample{t.x.topRows(300), {t.y.begin(), t.y.begin() + 300}};
    report("nearest neighbour", nearest_neighbour_accuracy(x, sample));
  }
  const Samples x = histograms_of(*train, 12000), t = histograms_of(*test, 2000);
  report("linear on colour histogram", linear_accuracy(x, t, 0.3f, 20));
  report("nearest colour histogram", nearest_neighbour_accuracy(x, t));
}

TEST_CASE("threads that ask for the same images at once get what is drawn, and kept") {
  const DatasetPtr set = builtin_images(Part::kValidation);
  uint32_t drawn = 0;
  for (int64_t i = 0; i < set->size(); ++i) {
    drawn = drawn * 31 + checksum(draw_builtin_image(Part::kValidation, i));
    REQUIRE(set->label(i) == i % kClasses);
  }
  for (int time = 0; time < 2; ++time) {
    std::vector<uint32_t> sums(3, 0);
    std::vector<std::thread> threads;
    for (uint32_t& sum : sums) {
      threads.emplace_back([&set, &sum] {
        for (int64_t i = 0; i < set->size(); ++i) sum = sum * 31 + checksum(set->image(i));
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(sums == std::vector<uint32_t>(3, drawn));
  }
  CHECK_THROWS_AS(set->image(set->size()), std::out_of_range);
}

TEST_CASE("no image occurs twice, within a split or in two") {
  std::set<uint32_t> seen;
  for (const auto part : {Part::kTrain, Part::kValidation, Part::kTest}) {
    for (int64_t i = 0; i < 300; ++i)
      CHECK(seen.insert(checksum(draw_builtin_image(part, i))).second);
  }
}

TEST_CASE("the split has its sizes, names and normalisation") {
  const DatasetPtr test = builtin_images(Part::kTest);
  CHECK(test->size() == 2000);
  CHECK(builtin_images(Part::kValidation)->size() == 1000);
  const DatasetPtr train = builtin_images(Part::kTrain);
  CHECK(train->size() == 12000);
  CHECK(train->class_names().size() == kClasses);
  const Normalization stated = train->format().normalization;
  for (int c = 0; c < 3; ++c) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < 2000; ++i) {
      const Example example = train->example(i);
      for (int p = 0; p < 1024; ++p) {
        const double value = example.image.pixels[3 * p + c] / 255.0;
        sum += value / 2048000;
        squares += value * value / 2048000;
      }
    }
    CHECK(stated.mean[c] == Approx(sum).margin(0.02));
    CHECK(stated.std[c] == Approx(std::sqrt(squares - sum * sum)).margin(0.02));
  }
}

}  // namespace
}  // namespace weft::data
