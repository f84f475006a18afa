// weft diff A B: how far the tensors of two files are apart.

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "autograd/ops.h"
#include "cli/command.h"
#include "cli/json_line.h"
#include "io/progress.h"
#include "train/pretrained/pretrained.h"

namespace weft::cli {
namespace {

struct Arguments {
  std::string first, second;
  bool json = false;
};

struct Difference {
  std::string reason;  // why the elements cannot be compared; empty when they can
  bool bit_equal = false;
  int64_t elements = 0;  // that differ in value, or in being NaN
  double max_abs = 0;    // infinite when an infinity or a NaN stands against a number
};

/// Elements of both, as doubles. NaN against NaN is no difference.
Difference compare(const Tensor* a, const Tensor* b) {
  if (!a || !b) return {.reason = a ? "only in the first" : "only in the second"};
  if (a->dtype() != b->dtype() || a->shape() != b->shape()) {
    return {.reason =
                fmt::format("{} {} against {} {}", a->dtype(), a->shape(), b->dtype(), b->shape())};
  }
  Difference result;
  result.bit_equal = a->nbytes() == 0 || std::memcmp(a->raw(), b->raw(), a->nbytes()) == 0;
  if (result.bit_equal) return result;
  visit_dtype(a->dtype(), [&]<class T>(TypeTag<T>) {
    const T* first = a->data<T>();
    const T* second = b->data<T>();
    for (int64_t i = 0; i < a->numel(); ++i) {
      const double x = to_double(first[i]), y = to_double(second[i]);
      if (x == y || (std::isnan(x) && std::isnan(y))) continue;
      ++result.elements;
      const double distance = std::abs(x - y);
      result.max_abs = std::max(result.max_abs, std::isnan(distance) ? HUGE_VAL : distance);
    }
  });
  return result;
}

std::map<std::string, Tensor> by_name(const std::string& path) {
  std::map<std::string, Tensor> tensors;
  // Those of torch.save may be views.
  for (const auto& [name, tensor] : train::read_weight_file(path).tensors) {
    tensors.emplace(name, ops::contiguous(tensor));
  }
  return tensors;
}

int diff(const Arguments& arguments) {
  const auto a = by_name(arguments.first), b = by_name(arguments.second);
  std::set<std::string> names;
  size_t name_width = 4;
  for (const auto* side : {&a, &b}) {
    for (const auto& [name, tensor] : *side) {
      names.insert(name);
      name_width = std::max(name_width, name.size());
    }
  }
  const auto find = [](const std::map<std::string, Tensor>& side, const std::string& name) {
    const auto place = side.find(name);
    return place == side.end() ? nullptr : &place->second;
  };
  io::Table table({{"name", static_cast<int>(name_width), io::Table::Align::kLeft},
                   {"max_abs", 11},
                   {"elements that differ", 0, io::Table::Align::kLeft}});
  int64_t different = 0;
  double max_abs = 0;
  for (const std::string& name : names) {
    const auto [reason, bit_equal, elements, distance] = compare(find(a, name), find(b, name));
    if (bit_equal) continue;
    ++different;
    max_abs = std::max(max_abs, distance);
    if (arguments.json && reason.empty()) {
      print_json({{"name", name}, {"elements", elements}, {"max_abs", distance}});
    } else if (arguments.json) {
      print_json({{"name", name}, {"reason", reason}});
    } else if (reason.empty()) {
      table.row({name, fmt::format("{:.4g}", distance),
                 fmt::format("{} of {}", elements, find(a, name)->numel())});
    } else {
      table.row({name, "-", reason});
    }
  }
  if (arguments.json) {
    print_json({{"tensors", names.size()}, {"different", different}, {"max_abs", max_abs}});
  } else if (different == 0) {
    fmt::print("{} tensors, all equal bit for bit\n", names.size());
  } else {
    fmt::print("{} tensors, {} different, largest difference {:.4g}\n", names.size(), different,
               max_abs);
  }
  return different == 0 ? 0 : 1;
}

}  // namespace

void add_diff(Command& app, Action& action) {
  // An error has the exit code of a mistake in the command line.
  const auto run = [](const Arguments& a) { return as_usage([&] { return diff(a); }); };
  const auto [command, a] =
      add_command<Arguments>(app, action, run, "diff",
                             "Compare the tensors of two weight files, bit for bit", kFileCommands);
  command.footer(
      "The exit code is 0 when all tensors are equal bit for bit, 1 when some differ, 2 on an "
      "error.");
  command.option(
      "A", a.first,
      "The first file, or an index of several: .safetensors, .safetensors.index.json, .pth, .bin",
      {.required = true});
  command.option("B", a.second, "The second, likewise", {.required = true});
  command.flag("--json", a.json,
               "Print a JSON object for each tensor that differs, then one with the totals; "
               "an infinite difference is null");
}

}  // namespace weft::cli
