// weft diff A B: how far two safetensors files are apart.

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/command.h"
#include "core/error.h"
#include "io/progress.h"
#include "io/safetensors.h"

namespace weft::cli {
namespace {

constexpr int kSame = 0, kDifferent = 1, kError = 2;

struct Difference {
  std::string reason;  // why the elements cannot be compared; empty when they can
  bool bit_equal = false;
  int64_t elements = 0;  // that differ in value, or in being NaN
  double max_abs = 0;    // infinite when an infinity or a NaN stands against a number
};

/// Elements of both, as doubles. NaN against NaN is no difference.
Difference compare(const Tensor* a, const Tensor* b) {
  Difference result;
  if (!a || !b) {
    result.reason = a ? "only in the first" : "only in the second";
    return result;
  }
  if (a->dtype() != b->dtype() || a->shape() != b->shape()) {
    result.reason =
        fmt::format("{} {} against {} {}", a->dtype(), a->shape(), b->dtype(), b->shape());
    return result;
  }
  result.bit_equal = a->nbytes() == 0 || std::memcmp(a->raw(), b->raw(), a->nbytes()) == 0;
  if (result.bit_equal) return result;
  visit_dtype(a->dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
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
  const io::SafeTensors file = io::read_safetensors(path);
  return {file.tensors.begin(), file.tensors.end()};
}

nlohmann::ordered_json describe(const std::string& name, const Difference& difference) {
  nlohmann::ordered_json row = {{"name", name}};
  if (!difference.reason.empty()) {
    row["reason"] = difference.reason;
  } else {
    row["elements"] = difference.elements;
    row["max_abs"] = difference.max_abs;
  }
  return row;
}

int diff(const std::string& path_a, const std::string& path_b, bool as_json) {
  const auto a = by_name(path_a), b = by_name(path_b);
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
    const Difference difference = compare(find(a, name), find(b, name));
    if (difference.bit_equal) continue;
    ++different;
    max_abs = std::max(max_abs, difference.max_abs);
    if (as_json) {
      fmt::print("{}\n", describe(name, difference).dump());
    } else if (!difference.reason.empty()) {
      table.row({name, "-", difference.reason});
    } else {
      table.row({name, fmt::format("{:.4g}", difference.max_abs),
                 fmt::format("{} of {}", difference.elements, find(a, name)->numel())});
    }
  }
  if (as_json) {
    const nlohmann::ordered_json all = {
        {"tensors", names.size()}, {"different", different}, {"max_abs", max_abs}};
    fmt::print("{}\n", all.dump());
  } else if (different == 0) {
    fmt::print("{} tensors, all equal bit for bit\n", names.size());
  } else {
    fmt::print("{} tensors, {} different, largest difference {:.4g}\n", names.size(), different,
               max_abs);
  }
  return different == 0 ? kSame : kDifferent;
}

}  // namespace

void add_diff(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("diff", "Compare the tensors of two safetensors files, bit for bit")
          ->group(kFileCommands);
  command->footer(
      "The exit code is 0 when all tensors are equal bit for bit, 1 when some differ, 2 on an "
      "error.");
  auto paths = std::make_shared<std::pair<std::string, std::string>>();
  auto as_json = std::make_shared<bool>(false);
  command->add_option("A", paths->first, "The first .safetensors file")->required();
  command->add_option("B", paths->second, "The second .safetensors file")->required();
  command->add_flag("--json", *as_json,
                    "Print a JSON object for each tensor that differs, then one with the totals; "
                    "an infinite difference is null");
  command->callback([&action, paths, as_json] {
    action = [=] {
      try {
        return diff(paths->first, paths->second, *as_json);
      } catch (const Error& error) {
        fmt::print(stderr, "weft: error: {}\n", error.what());
        return kError;
      }
    };
  });
}

}  // namespace weft::cli
