// Measures a device's roofline and prints it (kernels/testing/roofline.h).
//
//   roofline [--device cpu|cuda|cuda:N] [--quick]
//
// Rates are the best of several runs: a ceiling is what the device can do. --quick takes small
// sizes and few runs, for tests.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/parallel.h"
#include "core/runtime.h"
#include "core/stream.h"
#include "core/transfer.h"
#include "io/command_line.h"
#include "kernels/autotune.h"
#include "kernels/device/probe.h"
#include "kernels/gemm/gemm.h"
#include "kernels/testing/bench.h"
#include "kernels/testing/timing.h"

namespace weft::kernels {
namespace {

struct Sizes {
  int64_t copy_bytes, matmul;
  int runs;
};

Sizes sizes_on(Device device, bool quick) {
  if (quick) return {int64_t{8} << 20, 256, 2};
  // Copies beyond every cache; products large enough for a library's best rate.
  if (device.type == DeviceType::cpu) return {int64_t{256} << 20, 1024, 8};
  return {int64_t{1} << 30, 8192, 10};
}

template <class Run>
double best_of(int runs, Device device, Run&& run) {
  run();  // compiles, allocates
  double best = INFINITY;
  for (int i = 0; i < runs; ++i) best = std::min(best, time_run(device, run));
  return best;
}

double copy_rate(Device device, const Sizes& sizes) {
  const Tensor from = Tensor::empty({sizes.copy_bytes}, DType::u8);
  std::memset(from.raw(), 0x5a, from.nbytes());
  if (device.type == DeviceType::cuda) {
    const Tensor there = to_device(from, device);
    const Tensor to = Tensor::empty({sizes.copy_bytes}, DType::u8, device);
    const double seconds = best_of(sizes.runs, device, [&] { copy_same_layout(there, to); });
    return 2e-9 * static_cast<double>(sizes.copy_bytes) / seconds;
  }
  const Tensor to = Tensor::empty({sizes.copy_bytes}, DType::u8);
  const auto* const source = static_cast<const char*>(from.raw());
  auto* const target = static_cast<char*>(to.raw());
  const int64_t chunk = (sizes.copy_bytes + num_threads() - 1) / num_threads();
  const double seconds = best_of(sizes.runs, device, [&] {
    parallel_for(sizes.copy_bytes, chunk, [&](int64_t begin, int64_t end) {
      std::memcpy(target + begin, source + begin, static_cast<size_t>(end - begin));
    });
  });
  return 2e-9 * static_cast<double>(sizes.copy_bytes) / seconds;
}

/// Uniform values: matrices of zeros draw less power, and run faster, than real ones.
Tensor random_matrix(int64_t n, DType dtype, Device device) {
  Philox random(static_cast<uint64_t>(n));
  const Tensor x = Tensor::empty({n, n}, dtype);
  visit_dtype(dtype, [&]<class T>(TypeTag<T>) {
    for (int64_t i = 0; i < n * n; ++i) x.data<T>()[i] = from_double<T>(2 * random.uniform() - 1);
  });
  return to_device(x, device);
}

/// The vendor's variant where there is one, else the first that dispatch would take.
std::string matmul_variant(const GemmProblem& p) {
  std::string first;
  for (const Variant<GemmProblem>& variant : gemm_op().variants) {
    if (!takes(variant, p)) continue;
    if (first.empty()) first = variant.name;
    if (is_vendor_variant(variant.name)) return std::string(variant.name);
  }
  return first;
}

int run(Device device, bool quick) {
  const Sizes sizes = sizes_on(device, quick);
  nlohmann::ordered_json json = {
      {"device", to_string(device)},    {"name", device_name(device)},
      {"threads", num_threads()},       {"copy_gb_s", copy_rate(device, sizes)},
      {"copy_bytes", sizes.copy_bytes}, {"matmul_size", sizes.matmul}};
  std::vector<DType> dtypes = {DType::f32, DType::f16, DType::bf16};
  if (device.type == DeviceType::cpu) dtypes.push_back(DType::f64);
  const auto n = static_cast<double>(sizes.matmul);
  for (DType dtype : dtypes) {
    GemmProblem p{.a = random_matrix(sizes.matmul, dtype, device),
                  .b = random_matrix(sizes.matmul, dtype, device),
                  .c = Tensor::empty({sizes.matmul, sizes.matmul}, dtype, device),
                  .numerics = {}};
    const std::string variant = matmul_variant(p);
    const ForcedVariant forced("gemm", variant);
    const double seconds = best_of(sizes.runs, device, [&] { gemm(p); });
    json["matmul_tflop_s"][std::string(name(dtype))] = 2e-12 * n * n * n / seconds;
    json["matmul_variant"][std::string(name(dtype))] = variant;
  }
  std::printf("%s\n", nlohmann::ordered_json{{"roofline", json}}.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace weft::kernels

int main(int argc, char** argv) {
  using namespace weft;
  io::Command command("roofline", "Measures a device's roofline: the rates that no kernel exceeds");
  std::string device_text;
  bool quick = false;
  command.option("--device", device_text, "Device to measure: cpu, cuda or cuda:N",
                 {.takes = "DEVICE", .usual = "cuda where there is a GPU, else cpu"});
  command.flag("--quick", quick, "Take small sizes and few runs");
  try {
    if (const auto text = command.parse(argc, argv)) {
      std::printf("%s", text->c_str());
      return 0;
    }
  } catch (const io::ParseError& error) {
    std::fprintf(stderr, "weft: error: roofline: %s\n", error.what());
    return 2;
  }
  try {
    WEFT_CHECK(!runtime::is_emulated(), "roofline: the emulated device has no speed to measure");
    Device device;
    if (!device_text.empty()) {
      device = parse_device(device_text);
    } else if (runtime::device_count() > 0) {
      device = {DeviceType::cuda, 0};
    }
    kernels::require_usable(device);
    return kernels::run(device, quick);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "weft: error: %s\n", error.what());
    return 1;
  }
}
