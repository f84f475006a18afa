#include "cli/compare/cases.h"

#include <fmt/ranges.h>

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

/// The peer needs the architecture to build the same model.
ordered_json model_work(const std::string& kind, const std::string& model,
                        const ordered_json& more = ordered_json::object()) {
  const nn::MetaScope meta;
  ordered_json work = {{"kind", kind}, {"model", model}};
  work.update(more);
  work["architecture"] = models::make_model(model)->architecture();
  return work;
}

struct List {
  std::vector<CompareCase> cases;

  /// A step of a model. The name of `about` has {} for what it is, its work has what is said
  /// beside.
  void add_step(CompareCase about, const std::string& kind, const std::string& model, int64_t batch,
                const std::string& precision) {
    about.name = fmt::format(fmt::runtime(about.name),
                             fmt::format("{} {} batch {} {}", kind, model, batch, precision));
    ordered_json work = {{"batch", batch}, {"precision", precision}};
    if (!about.work.is_null()) work.update(about.work);
    about.work = model_work(kind, model, work);
    cases.push_back(std::move(about));
  }

  /// An op in both precisions, alone and with its gradient; {} in the group is the precision.
  void add_op(const std::string& group, const std::string& kind, const std::string& shape,
              const ordered_json& work, const std::vector<std::string>& sides = {"eager", "jax"}) {
    for (const char* precision : kPrecisions) {
      for (const bool backward : {false, true}) {
        ordered_json all = {{"kind", kind}, {"precision", precision}, {"backward", backward}};
        all.update(work);
        cases.push_back(
            {.group = fmt::format(fmt::runtime(group), precision),
             .name = fmt::format("{} {} {}{}", kind, shape, precision, backward ? " + grad" : ""),
             .work = std::move(all),
             .sides = sides});
      }
    }
  }

  /// The ops of a vit_b_16 that takes so many images: 197 tokens each, of width 768; and some of
  /// cct's at 16 times as many.
  void add_ops(const std::string& group, int64_t images) {
    constexpr int64_t kWidth = 768, kHidden = 3072;
    using Sizes = std::vector<int64_t>;
    const int64_t rows = images * 197;
    const auto text = [](const Sizes& sizes) { return fmt::format("{}", fmt::join(sizes, "x")); };
    for (const auto& [n, k] :
         {std::pair(3 * kWidth, kWidth), {kWidth, kWidth}, {kHidden, kWidth}, {kWidth, kHidden}}) {
      add_op(group, "gemm", text({rows, n, k}), {{"m", rows}, {"n", n}, {"k", k}},
             {"eager", "onednn", "jax"});
    }
    const auto add_shaped = [&](const std::string& kind, const Sizes& shape,
                                const std::vector<std::string>& sides = {"eager", "jax"}) {
      add_op(group, kind, text(shape), {{"shape", shape}}, sides);
    };
    add_shaped("softmax", {12 * rows, 197});
    add_shaped("layer_norm", {rows, kWidth});
    add_shaped("gelu", {rows, kHidden});
    for (const Sizes& s :
         {Sizes{16 * images, 4, 65, 32}, {images, 12, 197, 64}, {images / 4, 12, 1024, 64}}) {
      add_op(group, "attention", text(s),
             {{"batch", s[0]}, {"heads", s[1]}, {"tokens", s[2]}, {"depth", s[3]}});
    }
    add_shaped("cross_entropy", {4 * images, 1000});
    add_shaped("cross_entropy", {64 * images, 10});
    add_shaped("max_pool", {16 * images, 64, 32, 32}, {"eager"});
    add_shaped("chain", {rows, kHidden}, {"eager", "compile", "jax"});
    const Sizes shape = {rows, kHidden};
    add_op(group, "sum", text(shape) + " over rows", {{"shape", shape}, {"dims", {0}}});
    add_op(group, "sum", text(shape) + " over all",
           {{"shape", shape}, {"dims", ordered_json::array()}});
    for (const auto& [from, to] : {std::pair("fp32", "bf16"), {"bf16", "fp32"}}) {
      cases.push_back({.group = fmt::format(fmt::runtime(group), "casts"),
                       .name = fmt::format("cast {} {} to {}", text(shape), from, to),
                       .work = {{"kind", "cast"},
                                {"shape", shape},
                                {"from", from},
                                {"to", to},
                                {"backward", false}},
                       .sides = {"eager"}});
    }
  }
};

}  // namespace

std::vector<CompareCase> compare_cases(const std::string& directory, bool on_gpu) {
  using Measure = CompareCase::Measure;
  List list;
  std::vector<CompareCase>& cases = list.cases;
  for (const auto& [kind, group] : {std::pair("train", "training step"), {"infer", "inference"}}) {
    for (const auto& [model, batch] :
         {std::pair("vit_b_16", 1), {"vit_b_16", 4}, {"vit_b_16", 16}, {"cct", 64}, {"cct", 256}}) {
      for (const char* precision : kPrecisions) {
        std::vector<std::string> sides = {"eager", "compile"};
        const bool is_fp32 = std::string_view(precision) == "fp32";
        if (is_fp32) sides.emplace_back("onednn");
        sides.emplace_back("jax");
        if (std::string_view(kind) == "infer") {
          sides.emplace_back("openvino");
          if (is_fp32) sides.emplace_back("onnxruntime");
        }
        list.add_step({.group = group, .name = "{}", .sides = sides, .seconds = 0.6}, kind, model,
                      batch, precision);
      }
    }
  }
  list.add_ops("ops", 4);
  cases.push_back({.group = "ops",
                   .name = "adamw of vit_b_16's 86 M parameters",
                   .work = model_work("adamw", "vit_b_16"),
                   .sides = {"eager", "fused"},
                   .seconds = 0.5});
  for (const bool tape : {false, true}) {
    cases.push_back(
        {.group = "dispatch",
         .name = fmt::format("1000 additions of one element{}", tape ? ", recorded" : ""),
         .work = {{"kind", "dispatch"}, {"tape", tape}, {"repeats", 1000}},
         .sides = {"eager"}});
  }
  cases.push_back({.group = "data",
                   .name = "JPEG 500x375 to tensor, one thread",
                   .work = {{"kind", "jpeg"}, {"path", directory + "/photo.jpg"}},
                   .sides = {"eager"}});
  for (const std::string kind : {"save", "load"}) {
    cases.push_back({.group = "files",
                     .name = kind + " vit_b_16",
                     .work = model_work(kind, "vit_b_16"),
                     .sides = {"eager"}});
  }
  cases.push_back({.group = "start",
                   .name = "start-up to a first addition",
                   .measure = Measure::kStartUp,
                   .sides = {"eager"}});
  for (const auto& [model, batch] : {std::pair("vit_b_16", 4), {"cct", 64}}) {
    for (const char* precision : kPrecisions) {
      list.add_step({.group = "peak memory",
                     .name = "memory of {}",
                     .measure = Measure::kMemory,
                     .sides = {"eager"}},
                    "train", model, batch, precision);
    }
  }
  if (!on_gpu) return cases;
  list.add_ops("ops on a GPU, {}", 128);
  for (const char* precision : {"bf16", "fp16", "tf32", "fp32"}) {
    for (const int64_t batch : {256, 128, 64, 512}) {
      for (const bool graph : {false, true}) {
        list.add_step({.group = "training step on a GPU",
                       .name = graph ? "{} graph" : "{}",
                       .work = {{"graph", graph}},
                       .sides = {"eager", "compile"},
                       .seconds = 2},
                      "train", "vit_b_16", batch, precision);
      }
    }
  }
  return cases;
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
