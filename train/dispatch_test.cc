// Models whose weights rest on several devices and on disk (nn/dispatch.h): the bits of a run with
// all of them in memory, and the memory that it takes.
#include "nn/dispatch.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <optional>

#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "core/allocator.h"
#include "core/available_memory.h"
#include "core/runtime.h"
#include "core/sanitizer.h"
#include "io/safetensors.h"
#include "kernels/gemm/onednn_matmul.h"
#include "models/generate.h"
#include "models/registry.h"
#include "nn/init.h"
#include "nn/layers.h"
#include "nn/meta.h"
#include "tests/memory_limit.h"
#include "tests/skip.h"
#include "train/device_map_file.h"

namespace weft::train {
namespace {

using Catch::Matchers::Contains;
using models::Classifier;
using models::ModelOptions;

constexpr int64_t kMB = 1'000'000;
const Device kCpu, kOtherCpu{DeviceType::cpu, 1};

io::Path scratch(const std::string& name) {
  const char* directory = std::getenv("TEST_TMPDIR");
  return io::Path(directory ? directory : "/tmp") / name;
}

std::unique_ptr<Classifier> without_memory(const std::string& name, const ModelOptions& options) {
  const nn::MetaScope meta;
  auto model = models::make_model(name, options);
  model->eval();
  return model;
}

/// Its weights in a file, none of them zero.
std::unique_ptr<Classifier> write_model(const std::string& name, const ModelOptions& options,
                                        const io::Path& file) {
  auto model = models::make_model(name, options);
  model->eval();
  nn::init::normal(model->structure().head->weight, 0, 0.1);
  io::write_safetensors(file, model->state_dict());
  return model;
}

std::vector<double> logits(nn::Module& model, const Tensor& images, DType precision) {
  const NoGrad guard;
  const Autocast mode(precision);
  return model(images).to_vector();
}

const ModelOptions kSmall = {
    .image_size = 8, .classes = 3, .patch = 4, .layers = 3, .heads = 2, .width = 8, .hidden = 16};

}  // namespace

TEST_CASE("layers of vit_l_16 run in less than half of their memory, and give the same bits") {
  const ModelOptions options = {.image_size = 32, .classes = 10, .layers = 6};
  const io::Path file = scratch("vit_l_16.safetensors");
  const Tensor images = ops::randn({2, 3, 32, 32});
  if (sanitizer::is_linked()) WEFT_SKIP("limited memory: AddressSanitizer takes its own");
  std::vector<double> expected, expected_narrow;
  {
    const auto model = write_model("vit_l_16", options, file);
    expected = logits(*model, images, DType::f32);
    expected_narrow = logits(*model, images, DType::bf16);
  }
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(file));
  REQUIRE(bytes > 300 * kMB);
  allocator(kCpu).release_pool();
  {
    // The file's mapping takes address space, too. What remains holds no copy of the weights.
    const tests::AddressSpaceLimit limit(bytes + 150 * kMB);
    const bool is_peak_known = tests::reset_peak();
    const int64_t before = tests::status("VmHWM");
    const auto model = without_memory("vit_l_16", options);
    const nn::DeviceMap map = nn::auto_device_map(*model, {{kCpu, 110 * kMB}});
    CHECK_THAT(nn::dispatch(*model, io::read_safetensors(file).tensors, map),
               Contains("2 of 8 layers on cpu (53.") && Contains(", 6 on disk (252."));
    CHECK(logits(*model, images, DType::f32) == expected);
    CHECK(logits(*model, images, DType::f32) == expected);
    CHECK(logits(*model, images, DType::bf16) == expected_narrow);
    // A processor without products of bf16 widens the weights of one: an attention's 3072 x 1024
    // and an MLP's 4096 x 1024, whose memory the pool keeps for the next.
    const int64_t widened = kernels::onednn_has_bf16() ? 0 : (3072 + 4096) * 1024 * 4;
    if (is_peak_known) CHECK(tests::status("VmHWM") - before < 150 * kMB + widened);
    if (!is_peak_known) WEFT_SKIP("peak memory: /proc/self/clear_refs cannot be written");
  }
  std::filesystem::remove(file);
}

TEST_CASE("a model over two devices and the disk gives the bits of one on a device") {
  const io::Path file = scratch("small.safetensors");
  const auto whole = write_model("vit_b_16", kSmall, file);
  const Tensor images = ops::randn({2, 3, 8, 8});
  const NamedTensors state = io::read_safetensors(file).tensors;
  const std::vector<nn::DeviceMap> maps = {
      {.places = {{"", {}}}},
      {.places = {{"", kCpu},
                  {"encoder.layers", kOtherCpu},
                  {"encoder.layers.encoder_layer_1", {}}}},
      {.places = {{"", kOtherCpu}, {"encoder.layers.encoder_layer_2", kCpu}}, .main = kOtherCpu},
  };
  for (const nn::DeviceMap& map : maps) {
    const auto model = without_memory("vit_b_16", kSmall);
    INFO(nn::dispatch(*model, state, map));
    CHECK(logits(*model, images, DType::f32) == logits(*whole, images, DType::f32));
    // A run in another dtype of the weights converts those of the file, too.
    model->to(DType::f64);
    CHECK(model->structure().head->weight.dtype() == DType::f64);
    whole->to(DType::f64);
    const Tensor wide = ops::cast(images, DType::f64);
    CHECK(logits(*model, wide, DType::f32) == logits(*whole, wide, DType::f32));
    whole->to(DType::f32);
    model->train();
    CHECK_THROWS_WITH((*model)(images), Contains("call eval() first"));
  }
}

TEST_CASE("a state under older names is dispatched, also from its file") {
  const io::Path file = scratch("older.safetensors");
  const auto whole = write_model("vit_b_16", kSmall, file);
  NamedTensors state = whole->state_dict();
  for (auto& [name, tensor] : state) {
    for (const auto& [ours, older] :
         {std::pair("mlp.0.", "mlp.linear_1."), {"mlp.3.", "mlp.linear_2."}}) {
      const size_t at = name.find(ours);
      if (at != name.npos) name.replace(at, std::string(ours).size(), older);
    }
  }
  io::write_safetensors(file, state);
  const Tensor images = ops::randn({2, 3, 8, 8});
  const auto model = without_memory("vit_b_16", kSmall);
  INFO(nn::dispatch(*model, io::read_safetensors(file).tensors, {.places = {{"", {}}}}));
  CHECK(logits(*model, images, DType::f32) == logits(*whole, images, DType::f32));
}

TEST_CASE("weights that rest elsewhere come to the GPU for their layer") {
  if (runtime::device_count() == 0) WEFT_SKIP(runtime::no_device_reason().c_str());
  const Device gpu{DeviceType::cuda, 0};
  const io::Path file = scratch("gpu.safetensors");
  const auto whole = write_model("vit_b_16", kSmall, file);
  whole->to(gpu);
  const Tensor images = ops::to(ops::randn({2, 3, 8, 8}), gpu);
  const std::vector<double> expected = logits(*whole, images, DType::f32);
  const NamedTensors state = io::read_safetensors(file).tensors;
  const nn::Place disk;
  const std::vector<nn::DeviceMap> maps = {
      {.places = {{"", disk}}, .main = gpu},
      {.places = {{"", kCpu}, {"encoder.layers", gpu}, {"encoder.layers.encoder_layer_1", disk}},
       .main = gpu}};
  for (const nn::DeviceMap& map : maps) {
    const auto model = without_memory("vit_b_16", kSmall);
    INFO(nn::dispatch(*model, state, map));
    const size_t before = allocator(gpu).stats().live;
    CHECK(logits(*model, images, DType::f32) == expected);
    CHECK(allocator(gpu).stats().live == before);
  }
}

TEST_CASE("budgets fill devices in order and keep room for the largest layer") {
  const auto model = without_memory("vit_b_16", kSmall);
  const int64_t block = 4 * (8 * 3 * 8 + 3 * 8 + 8 * 8 + 8 + 4 * 8 + 2 * 8 * 16 + 16 + 8);
  const int64_t embedding = 4 * (8 + 8 * 3 * 16 + 8 + 5 * 8), head = 4 * (16 + 3 * 8 + 3);
  const auto text = [&](const nn::MemoryBudgets& budgets) {
    std::string all;
    const nn::DeviceMap map = nn::auto_device_map(*model, budgets);
    for (const auto& [name, place] : map.places) {
      if (name != "class_token" && name != "encoder.pos_embedding" && name != "encoder.ln") {
        all += nn::to_string(place) + " ";
      }
    }
    return all;
  };
  REQUIRE(embedding < block);
  CHECK(text({{kCpu, embedding + 3 * block + head}}) == "cpu cpu cpu cpu cpu ");
  CHECK(text({{kCpu, embedding + 3 * block}}) == "cpu cpu cpu disk disk ");
  CHECK(text({{kCpu, embedding + block}, {kOtherCpu, 2 * block + head}}) ==
        "cpu cpu cpu:1 cpu:1 cpu:1 ");
  CHECK(text({{kCpu, embedding + block}, {kOtherCpu, block}}) == "cpu cpu:1 disk disk disk ");
  CHECK_THROWS_WITH(
      text({{kCpu, block - 1}}),
      Contains("cpu may take") && Contains("the layer encoder.layers.encoder_layer_0 alone has"));
  CHECK_THROWS_WITH(text({{kCpu, 1}, {kCpu, 2}}), Contains("cpu has two memory budgets"));
  CHECK_THROWS_WITH(text({}), Contains("no device has a memory budget"));
}

namespace {

/// A head that is tied to the embedding, with rotary positions or with learned ones.
models::GptConfig tied(models::GptPositions positions) {
  return {.vocabulary = 23,
          .context = 16,
          .width = 16,
          .layers = 2,
          .kv_heads = 2,
          .hidden = 24,
          .positions = positions};
}

std::unique_ptr<models::Gpt> without_memory(const models::GptConfig& config) {
  const nn::MetaScope meta;
  auto model = std::make_unique<models::Gpt>(config);
  model->eval();
  return model;
}

}  // namespace

TEST_CASE("a tied head reads the embedding's weight wherever that rests, and generates") {
  const io::Path file = scratch("gpt.safetensors");
  for (const models::GptPositions positions :
       {models::GptPositions::kLearned, models::GptPositions::kRotary}) {
    const models::GptConfig config = tied(positions);
    manual_seed(5);
    models::Gpt whole(config);
    whole.eval();
    for (Tensor parameter : whole.parameters()) {
      if (parameter.dim() == 2) nn::init::normal(parameter, 0, 0.3);
    }
    io::write_safetensors(file, whole.state_dict());
    const Tensor tokens = Tensor::from(std::vector<int64_t>{1, 22, 0, 7, 9, 3}, {2, 3});
    const models::GenerateOptions options = {.max_new_tokens = 8, .temperature = 0};
    const std::vector<int64_t> text = models::generate(whole, {4, 11}, options);
    const NamedTensors state = io::read_safetensors(file).tensors;
    const std::vector<nn::DeviceMap> maps = {
        {.places = {{"", kCpu}}},
        {.places = {{"", {}}}},
        {.places = {{"", kCpu}, {"wte", {}}, {"wpe", {}}}},
        {.places = {{"", {}}, {"wte", kCpu}, {"wpe", kCpu}}},
        {.places = {{"", kOtherCpu}, {"wte", kCpu}, {"wpe", kCpu}, {"h.0", {}}}},
        {.places = {{"", kCpu}, {"ln_f", kOtherCpu}}, .main = kOtherCpu}};
    for (nn::DeviceMap map : maps) {
      if (positions == models::GptPositions::kRotary) {
        std::erase_if(map.places, [](const auto& entry) { return entry.first == "wpe"; });
      }
      const auto model = without_memory(config);
      INFO(nn::dispatch(*model, state, map));
      CHECK(logits(*model, tokens, DType::f32) == logits(whole, tokens, DType::f32));
      CHECK(logits(*model, tokens, DType::f32) == logits(whole, tokens, DType::f32));
      CHECK(models::generate(*model, {4, 11}, options) == text);
    }
  }
}

TEST_CASE("budgets count the embedding's weight again where a tied head runs without it") {
  const auto model = without_memory(tied(models::GptPositions::kRotary));
  const int64_t embedding = 4 * 23 * 16, norm = 4 * 16;
  const int64_t block = 4 * (16 * (16 + 2 * 8) + 16 * 16 + 3 * 16 * 24) + 2 * norm;
  REQUIRE(embedding + norm < block);
  const auto text = [&](const nn::MemoryBudgets& budgets) {
    std::string all;
    for (const auto& [name, place] : nn::auto_device_map(*model, budgets).places) {
      all += name + " " + nn::to_string(place) + ", ";
    }
    return all;
  };
  CHECK(text({{kCpu, embedding + 2 * block + norm}}) == "wte cpu, h.0 cpu, h.1 cpu, ln_f cpu, ");
  CHECK(text({{kCpu, embedding + block}, {kOtherCpu, block + norm + embedding}}) ==
        "wte cpu, h.0 cpu, h.1 cpu:1, ln_f cpu:1, ");
  CHECK(text({{kCpu, embedding + block}, {kOtherCpu, block + norm + embedding - 1}}) ==
        "wte cpu, h.0 cpu:1, h.1 disk, ln_f disk, ");
}

TEST_CASE("maps and states that do not fit the model are refused by name") {
  const auto model = without_memory("vit_b_16", kSmall);
  const NamedTensors whole = models::make_model("vit_b_16", kSmall)->state_dict();
  const auto fails = [&](const nn::DeviceMap& map, const NamedTensors& state,
                         const std::string& message) {
    CHECK_THROWS_WITH(nn::dispatch(*model, state, map), Contains(message));
  };
  fails({.places = {{"", kCpu}, {"encoder.layers.encoder_layer_3", kCpu}}}, whole,
        "the model has no module or tensor \"encoder.layers.encoder_layer_3\"; it has "
        "encoder.layers.encoder_layer_0, ");
  fails({.places = {{"encoder", kCpu}, {"heads", kCpu}, {"conv_proj", kCpu}}}, whole,
        "no entry places \"class_token\", of the layer embedding");
  fails({.places = {{"", kCpu}, {"encoder.layers.encoder_layer_1.mlp", kOtherCpu}}}, whole,
        "the layer encoder.layers.encoder_layer_1 is placed as one, but "
        "\"encoder.layers.encoder_layer_1.ln_1.weight\" is on cpu and "
        "\"encoder.layers.encoder_layer_1.mlp.0.weight\" on cpu:1");
  fails({.places = {{"", {}}}}, whole, "is to stay on disk, but its file has it in another form");
  NamedTensors other = whole;
  other[0].first = "token";
  fails({.places = {{"", kCpu}}}, other, "\"class_token\" is missing; unknown \"token\"");
  other = whole;
  other[0].second = Tensor::zeros({1, 1, 4});
  fails({.places = {{"", kCpu}}}, other, "\"class_token\" is [1, 1, 4], expected [1, 1, 8]");
  for (const Tensor& tensor : model->parameters()) CHECK_FALSE(nn::has_memory(tensor));
}

TEST_CASE("device maps are read in Accelerate's form, budgets as a list") {
  const io::Path file = scratch("map.json");
  const auto read = [&](const std::string& text) {
    std::ofstream(file) << text;
    return read_device_map(file);
  };
  const nn::DeviceMap map = read(R"({"conv_proj": "disk", "encoder": "cpu", "heads": 1, "": 0})");
  CHECK(map.main == Device{DeviceType::cuda, 1});
  REQUIRE(map.places.size() == 4);
  CHECK(map.places[0] == std::pair<std::string, nn::Place>("conv_proj", std::nullopt));
  CHECK(map.places[1] == std::pair<std::string, nn::Place>("encoder", kCpu));
  CHECK(map.places[3].second == Device{DeviceType::cuda, 0});
  CHECK(read(R"({"": "disk"})").main == kCpu);
  const std::string whole = R"({"heads": 1})";
  for (size_t size = 0; size < whole.size(); ++size) {
    CHECK_THROWS_WITH(read(whole.substr(0, size)), Contains("map.json: line 1: expected JSON"));
  }
  const std::string deep(80'000, '[');
  CHECK_THROWS_WITH(read(R"({"heads": )" + deep + std::string(deep.size(), ']') + "}"),
                    Contains("map.json: JSON nested more than 32 deep"));
  CHECK_THROWS_WITH(read("[1]"), Contains("map.json: expected a JSON object from module names"));
  CHECK_THROWS_WITH(read(R"({"heads": 4294967296})"),
                    Contains("expected cpu, disk, cuda:N or a GPU's number, got 4294967296"));
  CHECK_THROWS_WITH(read(R"({"heads": "tape"})"),
                    Contains("map.json: \"heads\": unknown device \"tape\""));
  CHECK_THROWS_WITH(read(R"({"heads": -1})"), Contains("\"heads\": expected cpu, disk"));

  const nn::MemoryBudgets budgets = parse_memory_budgets("cuda:1=10GB,cpu=64KiB");
  REQUIRE(budgets.size() == 2);
  CHECK(budgets[0] == std::pair(Device{DeviceType::cuda, 1}, int64_t{10'000'000'000}));
  CHECK(budgets[1] == std::pair(Device{}, int64_t{65536}));
  CHECK_THROWS_WITH(parse_memory_budgets("cpu"), Contains("\"cpu\": expected DEVICE=SIZE"));
  CHECK_THROWS_WITH(parse_memory_budgets("gpu=1GB"), Contains("unknown device \"gpu\""));
  CHECK_THROWS_WITH(parse_memory_budgets("disk=1GB"), Contains("disk has no memory budget"));
  // A GPU's number is its name, as in maps.
  CHECK(parse_memory_budgets("0=300MB,cpu=1GB")[0] ==
        std::pair(Device{DeviceType::cuda, 0}, int64_t{300'000'000}));
}

TEST_CASE("a device map is a place, too, and budgets are what there is") {
  for (const auto& [text, place, main] : std::vector<std::tuple<std::string, nn::Place, Device>>{
           {"cpu", kCpu, kCpu},
           {"cpu:1", kOtherCpu, kCpu},
           {"disk", std::nullopt, kCpu},
           {"cuda:1", Device{DeviceType::cuda, 1}, Device{DeviceType::cuda, 1}},
           {"2", Device{DeviceType::cuda, 2}, Device{DeviceType::cuda, 2}}}) {
    INFO(text);
    const nn::DeviceMap map = parse_device_map(text);
    REQUIRE(map.places.size() == 1);
    CHECK(map.places[0] == std::pair<std::string, nn::Place>("", place));
    CHECK(map.main == main);
  }
  const io::Path file = scratch("whole.json");
  std::ofstream(file) << R"({"": "disk"})";
  CHECK(parse_device_map(file.string()).places.size() == 1);
  CHECK_THROWS_WITH(parse_device_map("aut"),
                    Contains("no file \"aut\"") && Contains("did you mean \"auto\"?"));
  CHECK_THROWS_WITH(parse_device_map("cuda:x"), Contains("unknown device \"cuda:x\""));
  CHECK_THROWS_WITH(parse_place("diks"),
                    Contains("unknown device \"diks\": expected cpu, disk, ") &&
                        Contains("did you mean \"disk\"?"));

  const nn::MemoryBudgets budgets = available_budgets();
  REQUIRE_FALSE(budgets.empty());
  CHECK(budgets.back().first == kCpu);
  const auto [device, bytes] = budgets.back();
  CHECK(bytes > 0);
  CHECK(bytes < proc_bytes("/proc/meminfo", "MemTotal"));
  for (const auto& [gpu, free] : budgets) {
    if (gpu != kCpu) CHECK(free < static_cast<int64_t>(runtime::memory_info(gpu.index).total));
  }
  CHECK((!runtime::is_emulated() || budgets.size() == 1));
}

}  // namespace weft::train
