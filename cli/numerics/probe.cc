// weft numerics probe: dot products on the tensor cores of this machine, against their model.
#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <map>
#include <optional>

#include "cli/json_line.h"
#include "cli/numerics/numerics.h"
#include "core/philox.h"
#include "io/files.h"
#include "kernels/device/probe.h"
#include "kernels/device/tensor_core_probe.h"
#include "numerics/tensor_core_vectors.h"

namespace weft::cli {
namespace {

using numerics::TensorCoreVector;

struct Arguments {
  std::string device = "cuda", format = "fp16", gpu, output;
  int rows = 2500;
  uint64_t seed = 1;
  bool json = false;
};

/// The device's number, or an Error that says why there is none.
int find_device(const std::string& name) {
  int index = 0, read = 0;
  const bool numbered = std::sscanf(name.c_str(), "cuda:%d%n", &index, &read) == 1 &&
                        read == static_cast<int>(name.size()) && index >= 0;
  check_usage(name == "cuda" || numbered, "unknown device \"{}\": expected cuda or cuda:N", name);
  const kernels::CudaDevices cuda = kernels::find_cuda_devices();
  WEFT_CHECK(!cuda.devices.empty(), "no CUDA device: {}", cuda.reason);
  WEFT_CHECK(index < static_cast<int>(cuda.devices.size()), "no device cuda:{}: there are {}",
             index, cuda.devices.size());
  const std::string problem = kernels::probe_cuda_device(index);
  WEFT_CHECK(problem.empty(), "cuda:{} is not usable: {}", index, problem);
  return index;
}

/// The model's name by compute capability; empty for one that has none.
std::string gpu_of(int device) {
  static const std::map<int, const char*> kGpus = {
      {80, "a100"}, {86, "a2"}, {89, "ada"}, {90, "h100"}, {100, "b200"}};
  const auto gpu = kGpus.find(kernels::find_cuda_devices().devices[device].compute_capability);
  return gpu == kGpus.end() ? "" : gpu->second;
}

std::vector<TensorCoreVector> draw_vectors(const Arguments& a, DType format, int k) {
  // Rows in turn: plain, few large terms, cancelling.
  constexpr const char* kKinds[] = {"normal", "wide", "cancel"};
  std::vector<TensorCoreVector> vectors(a.rows);
  for (int i = 0; i < a.rows; ++i) {
    const Operands x = draw_operands(kKinds[i % 3], format, k, a.seed, i);
    const double c = Philox(a.seed, (uint64_t{1} << 32) + i).normal();
    vectors[i] = {x.a, x.b, static_cast<float>(c), std::nullopt, std::nullopt};
  }
  return vectors;
}

int probe(Arguments a) {
  const DType format = as_usage([&] { return numerics::parse_operand_format(a.format); });
  if (!a.gpu.empty()) as_usage([&] { return numerics::tensor_core_model(a.gpu, format); });
  const int device = find_device(a.device);
  if (a.gpu.empty()) a.gpu = gpu_of(device);
  WEFT_CHECK(!a.gpu.empty(), "no model of this GPU; --gpu names the one to compare with");

  const int k = kernels::tensor_core_probe_k(format);
  std::vector<TensorCoreVector> vectors = draw_vectors(a, format, k);
  std::vector<float> all_a, all_b, c;
  for (const TensorCoreVector& v : vectors) {
    all_a.insert(all_a.end(), v.a.begin(), v.a.end());
    all_b.insert(all_b.end(), v.b.begin(), v.b.end());
    c.push_back(v.c);
  }
  std::vector<uint8_t> differs(a.rows);
  const bool fp8 = format == DType::f8e4m3 || format == DType::f8e5m2;
  for (const DType output : {DType::f32, DType::f16}) {
    if (output == DType::f16 && format != DType::f16 && !fp8) continue;
    const numerics::TensorCoreModel model = numerics::tensor_core_model(a.gpu, format, output);
    // Hopper's model of f32 results of fp8 is that of wgmma; this instruction is another.
    if (model.gpu == "h100" && fp8 && output == DType::f32) continue;
    const std::vector<float> d =
        kernels::tensor_core_probe(device, format, output, all_a, all_b, c);
    for (int i = 0; i < a.rows; ++i) {
      (output == DType::f32 ? vectors[i].d_f32 : vectors[i].d_f16) = d[i];
      const float expected = numerics::model_result(model, vectors[i]);
      differs[i] |= std::bit_cast<uint32_t>(expected) != std::bit_cast<uint32_t>(d[i]);
    }
  }
  const int64_t mismatches = std::ranges::count(differs, 1);
  std::string lines;
  for (const TensorCoreVector& v : vectors) lines += numerics::format_vector(v) + "\n";
  if (a.output.empty()) {
    fmt::print("{}", lines);
  } else {
    io::write_file_atomically(a.output, [&](io::FileWriter& file) { file.write(lines); });
  }
  std::FILE* const out = a.output.empty() ? stderr : stdout;
  if (a.json) {
    print_json({{"rows", a.rows}, {"mismatches", mismatches}}, out);
  } else {
    fmt::print(out, "{} {} on cuda:{}: {} rows, {} of them differ from the model\n", a.gpu,
               a.format, device, a.rows, mismatches);
  }
  return 0;
}

}  // namespace

void add_numerics_probe(Command& numerics, Action& action) {
  const auto [command, a] = add_command<Arguments>(
      numerics, action, probe, "probe",
      "Run dot products on this machine's tensor cores and compare them with the model");
  command.option("--device", a.device, "GPU to probe: cuda or cuda:N", {.takes = "DEVICE"});
  command.option("--format", a.format, kFormatHelp);
  command.option("--gpu", a.gpu,
                 "GPU whose model the results are compared with: a name of numerics replay --gpu",
                 {.usual = "by the device's compute capability"});
  command.option("--rows", a.rows, "Number of dot products", {.check = in_range(1, 1000000)});
  command.option("--seed", a.seed, "Seed of the operands");
  command.option("--output", a.output, "Write operands and results to this file",
                 {.takes = "FILE", .usual = "standard output"});
  command.flag("--json", a.json,
               "Print the counts as {\"rows\":N,\"mismatches\":M}, on standard error without "
               "--output");
}

}  // namespace weft::cli
