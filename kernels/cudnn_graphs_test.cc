// The graphs that cuDNN's variants of attention and layer_norm are made of, without a GPU: cuDNN
// 9.8 and later makes plans for a device that is not here, from its properties, to the point where
// the driver loads what was compiled. That its engines know the graphs and compile them for an
// H200 is what is tested; where there is no driver the toolkit's stub of it stands in.
#include <dlfcn.h>

#include <catch2/catch.hpp>
#include <cstdlib>

#include "core/view.h"
#include "kernels/attention/attention.h"
#include "kernels/layer_norm/layer_norm_cudnn_graph.h"
#include "tests/skip.h"

#if __has_include(<cudnn.h>)

using namespace weft;
using namespace weft::kernels;

namespace {

/// As cuDNN writes them.
constexpr const char* kH200 = R"({
  "deviceName": "NVIDIA H200", "deviceVer": 900, "driverVer": 13000, "cudaDeviceId": 0,
  "pciDeviceId": 0, "isTccDriver": 0, "supportCoopLaunch": 1, "multiProcessorCount": 132,
  "warpSize": 32, "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64],
  "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "maxCtasPerSM": 32, "regsPerBlock": 65536,
  "maxRegistersPerSM": 65536, "maxSharedMemoryPerBlock": 49152,
  "maxSharedMemoryPerBlockOptin": 232448, "reservedSharedMemoryPerBlock": 1024,
  "smClockRateKHz": 1980000, "memClockRateKHz": 3201000, "l2CacheSize": 62914560,
  "totalGlobalMem": 150000000000})";

bool has_driver() {
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL)) return true;
  const char* const home = std::getenv("CUDA_HOME");
  const std::string toolkit = home ? home : "/usr/local/cuda";
  return dlopen((toolkit + "/lib64/stubs/libcuda.so").c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr;
}

/// Why the tests cannot run here; empty where they can.
std::string obstacle() {
  if (!cudnn().library.is_open()) return "no cuDNN";
  if (!has_driver()) return "neither a driver nor the toolkit's stub of one";
  try {
    const CudnnTarget target(kH200);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// "" where the graph has a plan, up to its loading; else why not.
std::string refusal(CudnnGraph graph) {
  try {
    const CudnnPlan plan(std::move(graph), CudnnTarget(kH200));
  } catch (const Error& error) {
    const std::string reason = error.what();
    return reason.find("cuLibraryLoadData") != std::string::npos ? "" : reason;
  }
  return "";
}

AttentionProblem attention_problem(DType dtype, int64_t queries, int64_t keys, bool causal,
                                   bool backward) {
  const auto heads = [&](int64_t tokens) {
    return view::permute(Tensor::empty({4, tokens, 12, 64}, dtype), {0, 2, 1, 3});
  };
  AttentionProblem p{.q = heads(queries), .k = heads(keys), .v = heads(keys)};
  p.out = heads(queries);
  p.lse = Tensor::empty({4, 12, queries}, DType::f32);
  p.scale = 0.125;
  p.causal = causal;
  if (backward) {
    p.dout = heads(queries), p.dq = heads(queries);
    p.dk = heads(keys), p.dv = heads(keys);
  }
  return p;
}

LayerNormProblem layer_norm_problem(DType dtype, bool backward) {
  const auto rows = [&] { return Tensor::empty({788, 768}, dtype); };
  const auto columns = [] { return Tensor::empty({768}, DType::f32); };
  const auto statistic = [] { return Tensor::empty({788}, DType::f32); };
  LayerNormProblem p{.x = rows(), .gamma = columns()};
  p.mean = statistic(), p.rstd = statistic();
  if (backward) {
    p.dy = rows(), p.dx = rows(), p.dgamma = columns(), p.dbeta = columns();
  } else {
    p.beta = columns(), p.y = rows();
  }
  return p;
}

}  // namespace

TEST_CASE("cuDNN's engines know the graphs of attention") {
  if (const std::string reason = obstacle(); !reason.empty()) WEFT_SKIP(reason.c_str());
  for (DType dtype : {DType::f16, DType::bf16}) {
    for (bool backward : {false, true}) {
      for (bool causal : {false, true}) {
        INFO(name(dtype) << " causal " << causal << " backward " << backward);
        CHECK(refusal(attention_cudnn_graph(
                  attention_problem(dtype, 197, 197, causal, backward))) == "");
      }
      CHECK(refusal(attention_cudnn_graph(attention_problem(dtype, 64, 1000, false, backward))) ==
            "");
    }
  }
}

TEST_CASE("cuDNN's engines know the graphs of layer norm") {
  if (const std::string reason = obstacle(); !reason.empty()) WEFT_SKIP(reason.c_str());
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (bool backward : {false, true}) {
      INFO(name(dtype) << " backward " << backward);
      CHECK(refusal(layer_norm_cudnn_graph(layer_norm_problem(dtype, backward))) == "");
    }
  }
}

TEST_CASE("a graph that no engine takes is an error") {
  if (const std::string reason = obstacle(); !reason.empty()) WEFT_SKIP(reason.c_str());
  CudnnGraph graph;  // a product of f64, computed in f32
  const auto matrix = [&](int64_t id) {
    return graph.memory(id, DType::f64, {1, 8, 8}, {64, 8, 1});
  };
  CHECK_THROWS_AS(
      [&] {
        graph.matmul(matrix(1), matrix(2), matrix(3));
        const CudnnPlan plan(std::move(graph), CudnnTarget(kH200));
      }(),
      Error);
}

#else
TEST_CASE("cuDNN's graphs") { WEFT_SKIP("built without cuDNN's headers"); }
#endif
