#include "cli/compare/cases.h"

#include <fmt/format.h>

#include <cmath>

#include "core/philox.h"
#include "data/image.h"
#include "io/files.h"
#include "models/registry.h"
#include "nn/meta.h"

namespace weft::cli {
namespace {

using nlohmann::ordered_json;

constexpr const char* kPrecisions[] = {"fp32", "bf16"};

/// All that the peer needs to build the same model.
ordered_json architecture_of(const std::string& model) {
  const nn::MetaScope meta;
  return models::make_model(model)->architecture();
}

class List {
 public:
  List(std::string directory, bool on_gpu) : directory_(std::move(directory)) {
    for (const char* kind : {"train", "infer"}) {
      for (const int64_t batch : {1, 4, 16}) add_model(kind, "vit_b_16", batch);
      for (const int64_t batch : {64, 256}) add_model(kind, "cct", batch);
    }
    add_ops("ops", 4);
    add_adamw();
    add_dispatch();
    add_pipeline();
    add_memory();
    if (!on_gpu) return;
    add_ops("ops on a GPU, {}", 128);
    add_gpu_steps();
  }

  std::vector<CompareCase> take() { return std::move(cases_); }

 private:
  using Measure = CompareCase::Measure;

  void add_model(const std::string& kind, const std::string& model, int64_t batch) {
    for (const char* precision : kPrecisions) {
      cases_.push_back({.group = kind == "train" ? "training step" : "inference",
                        .name = fmt::format("{} {} batch {} {}", kind, model, batch, precision),
                        .work = {{"kind", kind},
                                 {"model", model},
                                 {"batch", batch},
                                 {"precision", precision},
                                 {"architecture", architecture_of(model)}},
                        .sides = {"eager", "compile"},
                        .seconds = 0.6});
    }
  }

  /// An op in both precisions, alone and with its gradient; {} in the group is the precision.
  void add_op(const std::string& group, const std::string& kind, const std::string& shape,
              const ordered_json& work, const std::vector<std::string>& sides = {"eager"}) {
    for (const char* precision : kPrecisions) {
      for (const bool backward : {false, true}) {
        ordered_json all = {{"kind", kind}, {"precision", precision}, {"backward", backward}};
        all.update(work);
        cases_.push_back(
            {.group = fmt::format(fmt::runtime(group), precision),
             .name = fmt::format("{} {} {}{}", kind, shape, precision, backward ? " + grad" : ""),
             .work = std::move(all),
             .sides = sides});
      }
    }
  }

  void add_gpu_steps() {
    for (const char* precision : {"bf16", "fp16", "tf32", "fp32"}) {
      for (const int64_t batch : {256, 128, 64, 512}) {
        for (const bool graph : {false, true}) {
          cases_.push_back({.group = "training step on a GPU",
                            .name = fmt::format("train vit_b_16 batch {} {}{}", batch, precision,
                                                graph ? " graph" : ""),
                            .work = {{"kind", "train"},
                                     {"model", "vit_b_16"},
                                     {"batch", batch},
                                     {"precision", precision},
                                     {"graph", graph},
                                     {"architecture", architecture_of("vit_b_16")}},
                            .sides = {"eager", "compile"},
                            .seconds = 2});
        }
      }
    }
  }

  /// The ops of a vit_b_16 that takes so many images: 197 tokens each, of width 768; and some of
  /// cct's at 16 times as many.
  void add_ops(const std::string& group, int64_t images) {
    constexpr int64_t kWidth = 768, kHidden = 3072;
    const int64_t rows = images * 197;
    const auto add_gemm = [&](int64_t m, int64_t n, int64_t k) {
      add_op(group, "gemm", fmt::format("{}x{}x{}", m, n, k), {{"m", m}, {"n", n}, {"k", k}});
    };
    add_gemm(rows, 3 * kWidth, kWidth);
    add_gemm(rows, kWidth, kWidth);
    add_gemm(rows, kHidden, kWidth);
    add_gemm(rows, kWidth, kHidden);
    const auto add_shaped = [&](const std::string& kind, const std::vector<int64_t>& shape,
                                const std::vector<std::string>& sides = {"eager"}) {
      add_op(group, kind, fmt::format("{}", fmt::join(shape, "x")), {{"shape", shape}}, sides);
    };
    add_shaped("softmax", {12 * rows, 197});
    add_shaped("layer_norm", {rows, kWidth});
    add_shaped("gelu", {rows, kHidden});
    const auto add_attention = [&](int64_t batch, int64_t heads, int64_t tokens, int64_t depth) {
      add_op(group, "attention", fmt::format("{}x{}x{}x{}", batch, heads, tokens, depth),
             {{"batch", batch}, {"heads", heads}, {"tokens", tokens}, {"depth", depth}});
    };
    add_attention(16 * images, 4, 65, 32);
    add_attention(images, 12, 197, 64);
    add_attention(images / 4, 12, 1024, 64);
    add_shaped("cross_entropy", {4 * images, 1000});
    add_shaped("cross_entropy", {64 * images, 10});
    add_shaped("max_pool", {16 * images, 64, 32, 32});
    add_shaped("chain", {rows, kHidden}, {"eager", "compile"});
    const std::vector<int64_t> shape = {rows, kHidden};
    const std::string size = fmt::format("{}x{}", rows, kHidden);
    add_op(group, "sum", size + " over rows", {{"shape", shape}, {"dims", {0}}});
    add_op(group, "sum", size + " over all", {{"shape", shape}, {"dims", ordered_json::array()}});
    for (const auto& [from, to] : {std::pair("fp32", "bf16"), std::pair("bf16", "fp32")}) {
      cases_.push_back({.group = fmt::format(fmt::runtime(group), "casts"),
                        .name = fmt::format("cast {} {} to {}", size, from, to),
                        .work = {{"kind", "cast"},
                                 {"shape", shape},
                                 {"from", from},
                                 {"to", to},
                                 {"backward", false}},
                        .sides = {"eager"}});
    }
  }

  void add_adamw() {
    cases_.push_back({.group = "ops",
                      .name = "adamw of vit_b_16's 86 M parameters",
                      .work = {{"kind", "adamw"},
                               {"model", "vit_b_16"},
                               {"architecture", architecture_of("vit_b_16")}},
                      .sides = {"eager", "fused"},
                      .seconds = 0.5});
  }

  void add_dispatch() {
    constexpr int64_t kRepeats = 1000;
    for (const bool tape : {false, true}) {
      cases_.push_back(
          {.group = "dispatch",
           .name = fmt::format("1000 additions of one element{}", tape ? ", recorded" : ""),
           .work = {{"kind", "dispatch"}, {"tape", tape}, {"repeats", kRepeats}},
           .sides = {"eager"}});
    }
  }

  void add_pipeline() {
    cases_.push_back({.group = "data",
                      .name = "JPEG 500x375 to tensor, one thread",
                      .work = {{"kind", "jpeg"}, {"path", directory_ + "/photo.jpg"}},
                      .sides = {"eager"}});
    for (const char* kind : {"save", "load"}) {
      cases_.push_back({.group = "files",
                        .name = fmt::format("{} vit_b_16", kind),
                        .work = {{"kind", kind},
                                 {"model", "vit_b_16"},
                                 {"architecture", architecture_of("vit_b_16")}},
                        .sides = {"eager"}});
    }
    cases_.push_back({.group = "start",
                      .name = "start-up to a first addition",
                      .measure = Measure::kStartUp,
                      .sides = {"eager"}});
  }

  void add_memory() {
    const auto add = [&](const std::string& model, int64_t batch) {
      for (const char* precision : kPrecisions) {
        cases_.push_back(
            {.group = "peak memory",
             .name = fmt::format("memory of train {} batch {} {}", model, batch, precision),
             .measure = Measure::kMemory,
             .work = {{"kind", "train"},
                      {"model", model},
                      {"batch", batch},
                      {"precision", precision},
                      {"architecture", architecture_of(model)}},
             .sides = {"eager"}});
      }
    };
    add("vit_b_16", 4);
    add("cct", 64);
  }

  const std::string directory_;
  std::vector<CompareCase> cases_;
};

}  // namespace

std::vector<CompareCase> compare_cases(const std::string& directory, bool on_gpu) {
  return List(directory, on_gpu).take();
}

void write_compare_files(const std::string& directory) {
  // Smooth shapes with a little noise: about as many bytes a pixel as a photograph.
  data::Image image(375, 500);
  Philox random(0, 0);
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x) {
      for (int c = 0; c < 3; ++c) {
        const double wave = std::sin(0.02 * (c + 1) * x) * std::cos(0.03 * y + c);
        image.at(y, x)[c] = static_cast<uint8_t>(128 + 90 * wave + 24 * (random.uniform() - 0.5));
      }
    }
  }
  const std::vector<uint8_t> bytes = data::encode_jpeg(image, 90);
  io::write_file_atomically(directory + "/photo.jpg",
                            [&](io::FileWriter& file) { file.write(bytes.data(), bytes.size()); });
}

}  // namespace weft::cli
