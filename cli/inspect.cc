// weft inspect FILE: what a file of weights holds.

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cli/command.h"
#include "cli/json_line.h"
#include "io/progress.h"
#include "io/quote.h"
#include "train/pretrained/pretrained.h"

namespace weft::cli {
namespace {

struct Arguments {
  std::string path;
  bool json = false;
};

struct Statistics {
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  double mean = 0;
  double std = 0;  // of the elements as a whole population
  int64_t non_finite = 0;
};

/// Of the finite elements; NaN in all fields when there are none.
Statistics statistics_of(const Tensor& tensor) {
  Statistics result;
  visit_dtype(tensor.dtype(), [&]<class T>(TypeTag<T>) {
    const T* values = tensor.data<T>();
    double sum = 0, squares = 0;
    for_each_offset(tensor.shape(), tensor.strides(), [&](int64_t i) {
      const double x = to_double(values[i]);
      if (!std::isfinite(x)) {
        ++result.non_finite;
        return;
      }
      result.min = std::min(result.min, x);
      result.max = std::max(result.max, x);
      sum += x;
    });
    const auto count = static_cast<double>(tensor.numel() - result.non_finite);
    if (count == 0) {
      result.min = result.max = result.mean = result.std = std::nan("");
      return;
    }
    result.mean = sum / count;
    for_each_offset(tensor.shape(), tensor.strides(), [&](int64_t i) {
      const double distance = to_double(values[i]) - result.mean;
      if (std::isfinite(distance)) squares += distance * distance;
    });
    result.std = std::sqrt(squares / count);
  });
  return result;
}

int inspect(const Arguments& a) {
  const train::WeightFile file = train::read_weight_file(a.path);
  const auto names = train::recognise_vit(train::without_wrapper_prefixes(file.tensors));
  int64_t elements = 0;
  size_t bytes = 0;
  for (const auto& [name, tensor] : file.tensors) {
    elements += tensor.numel();
    bytes += tensor.nbytes();
  }
  if (a.json) {
    nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
    for (const auto& [name, tensor] : file.tensors) {
      const Statistics s = statistics_of(tensor);
      tensors.push_back(
          {{"name", name},
           {"dtype", weft::name(tensor.dtype())},
           {"shape", std::vector<int64_t>(tensor.shape().begin(), tensor.shape().end())},
           {"min", s.min},
           {"max", s.max},
           {"mean", s.mean},
           {"std", s.std},
           {"non_finite", s.non_finite}});
    }
    print_json({{"tensors", tensors},
                {"metadata", file.metadata},
                {"elements", elements},
                {"bytes", bytes},
                {"format", file.is_pth ? "torch.save" : "safetensors"},
                {"names", names ? train::name(*names) : ""}});
    return 0;
  }

  size_t name_width = 4, shape_width = 5;
  for (const auto& [name, tensor] : file.tensors) {
    name_width = std::max(name_width, io::printable(name).size());
    shape_width = std::max(shape_width, to_string(tensor.shape()).size());
  }
  constexpr auto kLeft = io::Table::Align::kLeft;
  io::Table table({{"name", static_cast<int>(name_width), kLeft},
                   {"dtype", 6, kLeft},
                   {"shape", static_cast<int>(shape_width), kLeft},
                   {"min", 11},
                   {"max", 11},
                   {"mean", 11},
                   {"std", 11},
                   {"", 0, kLeft}});
  for (const auto& [name, tensor] : file.tensors) {
    const Statistics s = statistics_of(tensor);
    table.row({io::printable(name), std::string(weft::name(tensor.dtype())),
               to_string(tensor.shape()), fmt::format("{:.4g}", s.min),
               fmt::format("{:.4g}", s.max), fmt::format("{:.4g}", s.mean),
               fmt::format("{:.4g}", s.std),
               s.non_finite ? fmt::format("{} not finite", s.non_finite) : ""});
  }
  for (const auto& [key, value] : file.metadata) {
    fmt::print("metadata {}: {}\n", io::printable(key), io::printable(value));
  }
  fmt::print(
      "{}{}\n", train::describe_format(file),
      names ? fmt::format("; a vision transformer under {}'s names", train::name(*names)) : "");
  fmt::print("{} tensors, {} elements, {} bytes\n", file.tensors.size(), elements, bytes);
  return 0;
}

}  // namespace

void add_inspect(Command& app, Action& action) {
  const auto [command, a] = add_command<Arguments>(
      app, action, inspect, "inspect",
      "List a weight file's tensors: names, dtypes, shapes, statistics", kFileCommands);
  command.option("FILE", a.path, "The .safetensors, .pth, .pt or .bin file to read",
                 {.required = true});
  command.flag("--json", a.json, kJsonObject);
}

}  // namespace weft::cli
