// Choosing by time, on variants whose times are known: they sleep.
#include "kernels/autotune.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "kernels/attention/attention.h"
#include "kernels/conv2d/conv2d.h"
#include "kernels/gemm/gemm.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/op.h"
#include "kernels/softmax/softmax.h"
#include "tests/captured_stderr.h"

namespace weft::kernels {
namespace {

namespace fs = std::filesystem;

struct Nap {
  Tensor y;
  std::string key = "a nap";

  DType dtype() const { return y.dtype(); }
  Device device() const { return y.device(); }
  std::string describe() const { return "nap"; }
  std::string tuning_key() const { return key; }
  std::vector<Tensor> written() const { return {y}; }
};

int runs = 0;

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }
// Each adds to y, so that a run too many would be seen.
void nap_long(const Nap& p) {
  ++runs;
  sleep_ms(20);
  *p.y.data<float>() += 1;
}
void nap_short(const Nap& p) {
  ++runs;
  *p.y.data<float>() += 2;
}
void nap_never(const Nap&) { WEFT_FAIL("nap_never: no bed"); }

const Op<Nap>& nap_op() {
  static constexpr Variant<Nap> kRows[] = {
      {"nap_never", DeviceType::cpu, kAnyType, fits_any<Nap>, nap_never},
      {"nap_long", DeviceType::cpu, kAnyType, fits_any<Nap>, nap_long},
      {"nap_short", DeviceType::cpu, kAnyType, fits_any<Nap>, nap_short}};
  static constexpr Op<Nap> kOp = {"nap", kRows};
  return kOp;
}

/// An empty directory, removed at the end.
struct Folder {
  Folder() {
    std::string name = (fs::temp_directory_path() / "weft-autotune-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { fs::remove_all(path); }
  fs::path path;
};

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_CASE("without autotuning the first row that fits runs") {
  if (autotunes()) return;  // the environment asks for it
  runs = 0;
  const Nap nap{Tensor::zeros({1}, DType::f32)};
  CHECK_THROWS_WITH(dispatch(nap_op(), nap), Catch::Contains("no bed"));
  CHECK(runs == 0);
}

TEST_CASE("the fastest variant is measured once, leaves no trace and is remembered") {
  const Folder folder;
  const fs::path cache = folder.path / "below" / "cache.json";
  const Nap nap{Tensor::full({1}, 40, DType::f32)};
  {
    const AutotuneScope scope(cache);
    CHECK(autotunes());
    runs = 0;
    dispatch(nap_op(), nap);
    CHECK(nap.y.item() == 42);
    CHECK(runs > 3);
    runs = 0;
    dispatch(nap_op(), nap);
    CHECK(nap.y.item() == 44);
    CHECK(runs == 1);
  }
  {
    // Another process would find it.
    const AutotuneScope scope(cache);
    runs = 0;
    dispatch(nap_op(), nap);
    CHECK(runs == 1);
    // Another problem is measured.
    dispatch(nap_op(), Nap{nap.y, "another nap"});
    CHECK(runs > 4);
    // A variant that is asked for is taken.
    const ForcedVariant forced("nap", "nap_long");
    CHECK(select_variant(nap_op(), nap).name == "nap_long");
  }
  const auto content = nlohmann::json::parse(text_of(cache));
  CHECK(content["weft_autotune"] == 1);
  REQUIRE(content["devices"].size() == 1);
  const auto& naps = content["devices"].front()["nap"];
  CHECK(naps["a nap"] == "nap_short");
  CHECK(naps["another nap"] == "nap_short");
  CHECK(std::distance(fs::directory_iterator(cache.parent_path()), {}) == 1);
}

TEST_CASE("a winner that is no longer listed is measured again") {
  const Folder folder;
  const fs::path cache = folder.path / "cache.json";
  const Nap nap{Tensor::zeros({1}, DType::f32)};
  {
    const AutotuneScope scope(cache);
    dispatch(nap_op(), nap);
  }
  std::string text = text_of(cache);
  text.replace(text.find("nap_short"), 9, "nap_older");
  std::ofstream(cache) << text;
  {
    const AutotuneScope scope(cache);
    runs = 0;
    dispatch(nap_op(), nap);
    CHECK(runs > 1);
  }
  CHECK(text_of(cache).find("nap_short") != std::string::npos);
}

TEST_CASE("a file that is no cache is left alone and said once") {
  const Folder folder;
  const fs::path cache = folder.path / "cache.json";
  const std::string content =
      GENERATE(as<std::string>(), "{\"weft_autotune\": 1, \"devices\": {", "[1, 2]", "a letter\n",
               "{\"weft_autotune\": 2, \"devices\": {}}", "{\"weft_autotune\": 1}",
               "{\"weft_autotune\": 1, \"devices\": {\"x\": {\"nap\": {\"a nap\": 3}}}}", "");
  std::ofstream(cache) << content;
  const Nap nap{Tensor::zeros({1}, DType::f32)};
  const std::string said = captured_stderr([&] {
    const AutotuneScope scope(cache);
    dispatch(nap_op(), nap);
    dispatch(nap_op(), Nap{nap.y, "another nap"});
  });
  CHECK(nap.y.item() == 4);
  CHECK(text_of(cache) == content);
  CHECK_THAT(said, Catch::StartsWith("weft: warning: the autotune cache " + cache.string() +
                                     " is not used: "));
  CHECK(std::count(said.begin(), said.end(), '\n') == 1);
}

TEST_CASE("a cache that cannot be written costs nothing but the memory of it") {
  const Folder folder;
  std::ofstream(folder.path / "file") << "in the way";
  const Nap nap{Tensor::zeros({1}, DType::f32)};
  const AutotuneScope scope(folder.path / "file" / "cache.json");
  dispatch(nap_op(), nap);
  runs = 0;
  dispatch(nap_op(), nap);
  CHECK(runs == 1);
}

TEST_CASE("matrix products are measured by shape, dtype and strides") {
  const Folder folder;
  const fs::path cache = folder.path / "cache.json";
  const AutotuneScope scope(cache);
  const Tensor a = Tensor::full({8, 16}, 1, DType::f32), b = Tensor::full({16, 4}, 2, DType::f32);
  const Tensor c = Tensor::full({8, 4}, 1, DType::f32);
  gemm({.a = a, .b = b, .c = c, .accumulate = true});
  for (double x : c.to_vector()) CHECK(x == 33);
  gemm({.a = a, .b = b, .c = c, .accumulate = true});
  for (double x : c.to_vector()) CHECK(x == 65);
  const auto kept = nlohmann::json::parse(text_of(cache))["devices"].front()["gemm"];
  REQUIRE(kept.size() == 1);
  const GemmProblem problem{.a = a, .b = b, .c = c, .accumulate = true};
  const std::string& key = kept.begin().key();
  CHECK(key == problem.tuning_key());
  CHECK_THAT(key, Catch::StartsWith("a f32 [8, 16] 16 1"));
  CHECK_THAT(key, Catch::Contains("accumulate"));
}

TEST_CASE("attention, convolutions, softmax and layer norm take part") {
  const Folder folder;
  const fs::path cache = folder.path / "cache.json";
  const auto kept = [&](const std::string& op) {
    return nlohmann::json::parse(text_of(cache))["devices"].front()[op];
  };
  const AutotuneScope scope(cache);
  const auto ramp = []<class T = float>(const Shape& shape, T = {}) {
    std::vector<T> values;
    for (int64_t i = 0; i < numel(shape); ++i) values.emplace_back(static_cast<float>(i % 7) - 3);
    return Tensor::from(values, shape);
  };
  // Whatever won, the outputs are those of a variant that ran once.
  SECTION("attention") {
    const Tensor q = ramp({1, 2, 9, 32}, bf16()), k = ramp({1, 2, 9, 32}, bf16());
    const AttentionProblem problem{.q = q,
                                   .k = k,
                                   .v = k,
                                   .out = Tensor::zeros(q.shape(), DType::bf16),
                                   .lse = Tensor::zeros({1, 2, 9}, DType::f32),
                                   .scale = 0.1};
    attention(problem);
    const auto rows = kept("attention");
    REQUIRE(rows.size() == 1);
    CHECK(rows.begin().key() == problem.tuning_key());
    CHECK_THAT(rows.begin().key(), Catch::Contains("q bf16 [1, 2, 9, 32]"));
    const auto tuned = problem.out.to_vector();
    const ForcedVariant forced("attention", rows.begin().value().get<std::string>());
    attention(problem);
    CHECK(problem.out.to_vector() == tuned);
  }
  SECTION("a convolution with dilation has another key") {
    const Tensor x = ramp({2, 4, 9, 9}), w = ramp({4, 4, 3, 3});
    Conv2dProblem problem{.x = x, .w = w, .y = Tensor::zeros({2, 4, 7, 7}, DType::f32)};
    conv2d(problem);
    problem.y = Tensor::zeros({2, 4, 5, 5}, DType::f32);
    problem.dilation = {2, 2};
    conv2d(problem);
    CHECK(kept("conv2d").size() == 2);
  }
  SECTION("one variant leaves nothing to measure") {
    const Tensor x = ramp({5, 16}), y = Tensor::zeros({5, 16}, DType::f32);
    softmax({.x = x, .y = y});
    layer_norm({.x = x, .y = y});
    CHECK_FALSE(fs::exists(cache));
  }
}

}  // namespace
}  // namespace weft::kernels
