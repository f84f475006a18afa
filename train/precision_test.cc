#include "train/precision.h"

#include <catch2/catch.hpp>
#include <mutex>
#include <set>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/random.h"
#include "kernels/gemm/gemm.h"
#include "kernels/op.h"
#include "nn/layers.h"

namespace weft::train {
namespace {

using Catch::Contains;
using kernels::Accumulation;

TEST_CASE("precisions go by our names and by Fabric's") {
  const std::pair<const char*, const char*> names[] = {{"fp32", "fp32"},
                                                       {"32-true", "fp32"},
                                                       {"32", "fp32"},
                                                       {"tf32", "tf32"},
                                                       {"bf16", "bf16"},
                                                       {"bf16-mixed", "bf16"},
                                                       {"fp16", "fp16"},
                                                       {"16-mixed", "fp16"},
                                                       {"16", "fp16"},
                                                       {"bf16-true", "bf16-true"},
                                                       {"fp16-true", "fp16-true"},
                                                       {"16-true", "fp16-true"},
                                                       {"fp64", "fp64"},
                                                       {"64-true", "fp64"},
                                                       {"64", "fp64"},
                                                       {"fp8", "fp8"},
                                                       {"transformer-engine", "fp8"}};
  for (const auto& [text, name] : names) {
    INFO(text);
    CHECK(find_precision(text).name == name);
  }
  for (const char* bad : {"", "int8", "BF16", "32-mixed"}) {
    CHECK_THROWS_WITH(find_precision(bad),
                      Contains("is not one of fp32, tf32, bf16, fp16, bf16-true, fp16-true, fp64, "
                               "fp8 (or 32-true, bf16-mixed, 16-mixed, 16-true, 64-true, "
                               "transformer-engine)"));
  }
}

TEST_CASE("a scope sets the products of a precision, and puts back what was") {
  const auto gemm_of = [](DType dtype) {
    return kernels::gemm_arithmetic(dtype, kernels::matmul_numerics());
  };
  {
    const PrecisionScope scope(find_precision("tf32"), Accumulation::kIeee);
    CHECK(gemm_of(DType::f32) == kernels::GemmArithmetic::kTf32);
    CHECK(kernels::conv_numerics().tf32 == kernels::Tf32::kTruncate);
    CHECK(autocast_dtype() == DType::f32);
  }
  {
    const PrecisionScope scope(find_precision("fp16"), Accumulation::kV100);
    CHECK(gemm_of(DType::f16) == kernels::GemmArithmetic::kTensorCore);
    CHECK(autocast_dtype() == DType::f16);
  }
  {
    Fp8Scaling fp8;
    const PrecisionScope scope(find_precision("fp8"), Accumulation::kIeee, &fp8);
    CHECK(autocast_dtype() == DType::bf16);
    CHECK(fp8_in_force() == fp8);
  }
  CHECK(!fp8_in_force());
  CHECK(autocast_dtype() == DType::f32);
  CHECK(kernels::matmul_settings() == kernels::MatmulSettings{});
  CHECK_THROWS_WITH(PrecisionScope(find_precision("fp8"), Accumulation::kIeee),
                    Contains("precision fp8 needs an Fp8Scaling"));
  CHECK(!fp8_in_force());
}

TEST_CASE("a precision that a device lacks names the one to use instead") {
  const auto error = [](const char* precision, int capability) -> std::string {
    try {
      check_supported(find_precision(precision),
                      capabilities_of_compute_capability("cuda:0 (a card)", capability));
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  CHECK(error("bf16", 75) ==
        "precision: cuda:0 (a card) has no bf16 products; use --precision fp16");
  CHECK(error("bf16-true", 75) ==
        "precision: cuda:0 (a card) has no bf16-true products; use --precision fp16-true");
  CHECK(error("fp8", 80) == "precision: cuda:0 (a card) has no fp8 products; use --precision bf16");
  CHECK(error("fp8", 75) == "precision: cuda:0 (a card) has no fp8 products; use --precision fp16");
  CHECK(error("tf32", 70) ==
        "precision: cuda:0 (a card) has no tf32 products; use --precision fp32");
  CHECK(error("fp16", 61) ==
        "precision: cuda:0 (a card) has no fp16 products; use --precision fp32");
  CHECK(error("bf16", 61) ==
        "precision: cuda:0 (a card) has no bf16 products; use --precision fp32");
  for (const Precision& precision : precisions()) {
    INFO(precision.name);
    CHECK(error(std::string(precision.name).c_str(), 90) == "");
    CHECK_NOTHROW(check_supported(precision, capabilities_of(Device{})));
  }
  CHECK_THROWS_WITH(check_supported(find_precision("bf16"), capabilities_of(Accumulation::kV100)),
                    "precision: --matmul-numerics v100 has no bf16 products; use --precision fp16");
  CHECK_THROWS_WITH(check_supported(find_precision("fp8"), capabilities_of(Accumulation::kA100)),
                    Contains("use --precision bf16"));
  CHECK_NOTHROW(check_supported(find_precision("fp8"), capabilities_of(Accumulation::kExact)));
  CHECK_THROWS_WITH(capabilities_of(Device{DeviceType::cuda, 99}),
                    Contains("cuda:99: there is no such device"));
  CHECK(capabilities_of(Device{}).bf16);
}

/// The dtypes of a small network's parts in a precision.
TEST_CASE("forward_logits brings images to the weights' dtype and logits back") {
  for (const Precision& precision : precisions()) {
    INFO(precision.name);
    nn::Linear layer(4, 3);
    layer.to(precision.parameters);
    Fp8Scaling fp8;
    const PrecisionScope scope(precision, Accumulation::kIeee, &fp8);
    const Tensor logits = forward_logits(layer, Tensor::full({2, 4}, 0.5), precision);
    CHECK(logits.dtype() == (precision.name == "fp64" ? DType::f64 : DType::f32));
  }
}

/// Every gemm variant that a launch hook sees.
class Variants : public kernels::LaunchHook {
 public:
  Variants() { kernels::set_launch_hook(this); }
  ~Variants() override { kernels::set_launch_hook(nullptr); }
  void begin(std::string_view op, std::string_view variant, Device, const std::string&) override {
    const std::lock_guard lock(mutex_);
    if (op == "gemm" || op == "attention" || op == "conv2d") seen.insert(std::string(variant));
  }
  void end() noexcept override {}
  std::set<std::string> seen;

 private:
  std::mutex mutex_;
};

TEST_CASE("the products of every op run in the numerics asked for, gradients included") {
  const auto variants = [](const char* precision, Accumulation accumulation) {
    manual_seed(1);
    const auto leaf = [](const Shape& shape) { return ops::randn(shape).set_requires_grad(true); };
    const Tensor x = leaf({2, 3, 8, 8}), w = leaf({4, 3, 3, 3}), patch = leaf({4, 3, 4, 4});
    const Tensor t = leaf({2, 5, 12}), l = leaf({12, 12}), m = leaf({12, 3});
    const PrecisionScope scope(find_precision(precision), accumulation);
    Variants hook;
    Tensor sum = ops::sum(ops::conv2d(x, w, {}, {.padding = {1, 1}}));
    sum = sum + ops::sum(ops::conv2d(x, patch, {}, {.stride = {4, 4}}));
    sum = sum + ops::sum(ops::self_attention(ops::linear(t, l), 2));
    sum = sum + ops::sum(ops::matmul(ops::linear_gelu(t, l), m));
    backward(sum);
    return hook.seen;
  };
  using Set = std::set<std::string>;
  const Set routed = {"attention_cpu_gemm", "conv2d_cpu_im2col", "conv2d_cpu_patches"};
  const auto with = [&](std::initializer_list<std::string> gemms) {
    Set all = routed;
    all.insert(gemms);
    return all;
  };
  CHECK(variants("fp32", Accumulation::kExact) == with({"gemm_cpu_exact"}));
  CHECK(variants("bf16", Accumulation::kH100) == with({"gemm_cpu_tensor_core"}));
  CHECK(variants("tf32", Accumulation::kA100) == with({"gemm_cpu_tensor_core"}));
  CHECK(variants("tf32", Accumulation::kIeee) == with({"gemm_cpu_tf32", "gemm_cpu_small"}));
  // f32 products of a GPU are ieee, but its convolutions take TF32, as PyTorch's do.
  const Set fp32 = variants("fp32", Accumulation::kH100);
  CHECK(fp32.count("conv2d_cpu_im2col") == 1);
  CHECK(fp32.count("gemm_cpu_tensor_core") == 1);
  CHECK(fp32.count("attention_cpu_gemm") == 0);
  CHECK(variants("fp32", Accumulation::kIeee).count("attention_cpu_gemm") == 0);
}

}  // namespace
}  // namespace weft::train
