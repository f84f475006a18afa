#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <mutex>
#include <numbers>
#include <span>
#include <vector>

#include "data/random.h"
#include "data/sets/sets.h"

namespace weft::data {
namespace {

constexpr int kSide = 32;
constexpr int kClasses = 10;
constexpr uint64_t kSeed = 20240229;  // of the set itself; a training run's seed does not change it
constexpr float kTurn = 2 * std::numbers::pi_v<float>;

// Mean and standard deviation of the training images' channels, to two digits.
constexpr Normalization kNormalization = {{0.50f, 0.50f, 0.50f}, {0.29f, 0.29f, 0.29f}};

struct Point {
  float x, y;
};

float length(float x, float y) { return std::sqrt(x * x + y * y); }

// The distances below are signed, negative inside: coverage of a pixel follows from them.

float distance_to_box(float x, float y, float half_width, float half_height) {
  const float dx = std::abs(x) - half_width, dy = std::abs(y) - half_height;
  return length(std::max(dx, 0.0f), std::max(dy, 0.0f)) + std::min(std::max(dx, dy), 0.0f);
}

float distance_to_polygon(float x, float y, std::span<const Point> corners) {
  float distance = INFINITY;
  bool inside = false;
  Point a = corners.back();
  for (const Point b : corners) {
    const float ex = a.x - b.x, ey = a.y - b.y, wx = x - b.x, wy = y - b.y;
    const float t = std::clamp((wx * ex + wy * ey) / (ex * ex + ey * ey), 0.0f, 1.0f);
    distance = std::min(distance, length(wx - ex * t, wy - ey * t));
    if ((b.y > y) != (a.y > y) && x < ex * (y - b.y) / ey + b.x) inside = !inside;
    a = b;
  }
  return inside ? -distance : distance;
}

// Corners on a circle, every other one on a circle of `inner` radius.
template <int kCorners>
std::array<Point, kCorners> star_corners(float outer, float inner) {
  std::array<Point, kCorners> corners;
  for (int k = 0; k < kCorners; ++k) {
    const float radius = k % 2 ? inner : outer, angle = kTurn * k / kCorners;
    corners[k] = {radius * std::cos(angle), radius * std::sin(angle)};
  }
  return corners;
}

// Distance to the middle of the nearest cell when a line is cut into cells of `period`, one of
// them centred on 0.
float to_cell_middle(float x, float period) { return x - period * std::floor(x / period + 0.5f); }

// The signed distance to a figure about the origin, of radius about 1. `detail` in (0, 1) varies
// the proportions that a class leaves open.
float distance_to_figure(int label, float detail, float x, float y) {
  static const auto triangle = star_corners<3>(1.1f, 1.1f);
  static const auto star = star_corners<10>(1.15f, 0.45f);
  const float radius = length(x, y);
  switch (label) {
    case 0:  // disc
      return radius - 0.9f;
    case 1:  // ring
      return std::abs(radius - 0.75f) - (0.17f + 0.1f * detail);
    case 2:  // square
      return distance_to_box(x, y, 0.78f, 0.78f);
    case 3:
      return distance_to_polygon(x, y, triangle);
    case 4: {  // cross
      const float half = 0.22f + 0.12f * detail;
      return std::min(distance_to_box(x, y, 1, half), distance_to_box(x, y, half, 1));
    }
    case 5:
      return distance_to_polygon(x, y, star);
    case 6:  // crescent: a disc without another
      return std::max(radius - 1.0f, 0.8f - length(x - 0.55f - 0.1f * detail, y));
    case 7: {  // three or more stripes
      const float period = 0.55f + 0.2f * detail;
      return std::max(std::abs(to_cell_middle(x, period)) - period / 4,
                      distance_to_box(x, y, 1, 1));
    }
    case 8: {  // checkerboard: figure where the two coordinates' cells agree
      const float period = 0.85f + 0.25f * detail;
      const float u = std::abs(to_cell_middle(x, period)) - period / 4;
      const float v = std::abs(to_cell_middle(y, period)) - period / 4;
      const float edge = std::min(std::abs(u), std::abs(v));
      return std::max(u * v > 0 ? -edge : edge, distance_to_box(x, y, 1, 1));
    }
    default: {  // nine dots
      const float u = to_cell_middle(std::clamp(x, -0.99f, 0.99f), 0.66f);
      const float v = to_cell_middle(std::clamp(y, -0.99f, 0.99f), 0.66f);
      const float outside =
          length(x - std::clamp(x, -0.99f, 0.99f), y - std::clamp(y, -0.99f, 0.99f));
      return length(u, v) - (0.19f + 0.05f * detail) + outside;
    }
  }
}

using Color = std::array<float, 3>;

Color random_color(Philox& random) {
  return {random.uniform(), random.uniform(), random.uniform()};
}

float color_distance(const Color& a, const Color& b) {
  return std::sqrt((a[0] - b[0]) * (a[0] - b[0]) + (a[1] - b[1]) * (a[1] - b[1]) +
                   (a[2] - b[2]) * (a[2] - b[2]));
}

void blend(Color& under, const Color& over, float alpha) {
  for (int c = 0; c < 3; ++c) under[c] += (over[c] - under[c]) * alpha;
}

// The share of a pixel on the inner side of an edge `distance` pixels away.
float coverage(float distance) { return std::clamp(0.5f - distance, 0.0f, 1.0f); }

// A frame of reference: lengths in pixels, (x, y) its origin.
struct Frame {
  float x, y, cosine, sine;

  Frame(float x, float y, float angle)
      : x(x), y(y), cosine(std::cos(angle)), sine(std::sin(angle)) {}
  Point operator()(float px, float py) const {
    return {(px - x) * cosine + (py - y) * sine, (py - y) * cosine - (px - x) * sine};
  }
};

// A stroke or a spot beneath the figure.
struct Distractor {
  explicit Distractor(Philox& random)
      : frame(random.uniform(0, kSide), random.uniform(0, kSide), random.uniform(0, kTurn)),
        is_stroke(chance(random, 0.5)),
        half_length(is_stroke ? random.uniform(4, 14) : random.uniform(1, 2.2f)),
        color(random_color(random)) {}
  float distance(float x, float y) const {
    const Point p = frame(x, y);
    return is_stroke ? distance_to_box(p.x, p.y, half_length, 0.5f)
                     : length(p.x, p.y) - half_length;
  }

  Frame frame;
  bool is_stroke;
  float half_length;
  Color color;
};

struct Ground {
  explicit Ground(Philox& random)
      : slope(kSide / 2.0f, kSide / 2.0f, random.uniform(0, kTurn)), from(random_color(random)) {
    for (int c = 0; c < 3; ++c) {
      to[c] = std::clamp(from[c] + random.uniform(-0.3f, 0.3f), 0.0f, 1.0f);
    }
  }
  Color color(float x, float y) const {
    Color result = from;
    blend(result, to, std::clamp(0.5f + slope(x, y).x / 40, 0.0f, 1.0f));
    return result;
  }

  Frame slope;
  Color from, to;
};

// A colour that stands out from both ends of the ground; the best of 20 where none does.
Color figure_color(const Ground& ground, Philox& random) {
  constexpr float kContrast = 0.5f;
  Color best{};
  float best_distance = -1;
  for (int attempt = 0; attempt < 20 && best_distance < kContrast; ++attempt) {
    const Color color = random_color(random);
    const float distance =
        std::min(color_distance(color, ground.from), color_distance(color, ground.to));
    if (distance > best_distance) {
      best = color;
      best_distance = distance;
    }
  }
  return best;
}

// Zero mean, unit variance: the sum of four bytes, of variance 4 (256^2 - 1) / 12.
float noise(uint32_t bits) {
  const int sum =
      static_cast<int>((bits & 255) + (bits >> 8 & 255) + (bits >> 16 & 255) + (bits >> 24));
  return static_cast<float>(sum - 510) / 147.80f;
}

void draw(Part part, int64_t index, uint8_t* pixels) {
  Philox random = random_stream(kSeed, Purpose::kBuiltin, static_cast<int64_t>(part), index);
  const int label = static_cast<int>(index % kClasses);

  const Ground ground(random);
  const Color color = figure_color(ground, random);
  const float radius = random.uniform(8, 13);
  const float reach = kSide / 2.0f - 0.5f - 0.9f * radius;
  const float squeeze = random.uniform(0.85f, 1);
  const float detail = random.uniform();
  const Frame frame(kSide / 2.0f + reach * random.uniform(-1, 1),
                    kSide / 2.0f + reach * random.uniform(-1, 1), random.uniform(0, kTurn));
  std::vector<Distractor> distractors;
  for (auto count = random.below(3); count > 0; --count) distractors.emplace_back(random);
  const float noise_scale = random.uniform(0, 0.09f);

  for (int row = 0; row < kSide; ++row) {
    for (int column = 0; column < kSide; ++column) {
      const float x = static_cast<float>(column) + 0.5f, y = static_cast<float>(row) + 0.5f;
      Color pixel = ground.color(x, y);
      for (const Distractor& distractor : distractors) {
        blend(pixel, distractor.color, 0.7f * coverage(distractor.distance(x, y)));
      }
      const Point p = frame(x, y);
      const float distance =
          radius * distance_to_figure(label, detail, p.x / radius, p.y / (radius * squeeze));
      blend(pixel, color, coverage(distance));
      for (const float value : pixel) {
        const float noisy = value + noise_scale * noise(random.next_u32());
        *pixels++ = static_cast<uint8_t>(std::clamp(noisy, 0.0f, 1.0f) * 255 + 0.5f);
      }
    }
  }
}

/// An image is drawn when it is first asked for, and kept: a run of a few steps needs a few.
class Drawn : public Dataset {
 public:
  explicit Drawn(Part part)
      : part_(part),
        drawn_(part == Part::kTrain        ? 12000
               : part == Part::kValidation ? 1000
                                           : 2000) {
    format_ = {kSide, kSide, kNormalization};
    class_names_ = {"disc", "ring",     "square",  "triangle",     "cross",
                    "star", "crescent", "stripes", "checkerboard", "dots"};
    for (size_t i = 0; i < drawn_.size(); ++i) {
      labels_.push_back(static_cast<int64_t>(i) % kClasses);
    }
    pixels_ = std::make_unique_for_overwrite<uint8_t[]>(drawn_.size() * kBytes);
  }

  Image image(int64_t index) const override {
    std::once_flag& drawn = drawn_.at(index);
    uint8_t* const kept = &pixels_[index * kBytes];
    std::call_once(drawn, [&] { draw(part_, index, kept); });
    Image image(kSide, kSide);
    std::copy_n(kept, kBytes, image.pixels.begin());
    return image;
  }

 private:
  static constexpr int64_t kBytes = 3 * kSide * kSide;

  const Part part_;
  mutable std::vector<std::once_flag> drawn_;
  std::unique_ptr<uint8_t[]> pixels_;
};

}  // namespace

Image draw_builtin_image(Part part, int64_t index) {
  Image image(kSide, kSide);
  draw(part, index, image.pixels.data());
  return image;
}

DatasetPtr builtin_images(Part part) { return std::make_shared<Drawn>(part); }

}  // namespace weft::data
