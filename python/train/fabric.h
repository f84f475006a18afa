// What Fabric and the Trainer are told alike, and how they begin.
#pragma once

#include <nanobind/stl/variant.h>

#include "python/options.h"
#include "train/fabric.h"

namespace weft::python {

/// 4, -1, "auto" or [0, 2].
template <>
struct Conversion<train::Devices> {
  using Argument = std::variant<int, std::string, std::vector<int>>;
  static Argument to_python(const train::Devices& devices) { return devices.count; }
  static train::Devices from_python(const Argument& argument) {
    return std::visit([](const auto& given) { return train::Devices(given); }, argument);
  }
};

/// A name, or one with settings.
template <>
struct Conversion<dist::StrategyOptions> {
  using Argument = std::variant<std::string, dist::StrategyOptions>;
  static Argument to_python(const dist::StrategyOptions& options) { return options.name; }
  static dist::StrategyOptions from_python(const Argument& argument) {
    if (const auto* const name = std::get_if<std::string>(&argument)) return {.name = *name};
    return std::get<dist::StrategyOptions>(argument);
  }
};

template <>
struct Conversion<kernels::Accumulation> {
  using Argument = std::string;
  static std::string to_python(kernels::Accumulation a) { return std::string(name(a)); }
  static kernels::Accumulation from_python(const std::string& name) {
    return kernels::parse_accumulation(name);
  }
};

/// Options of Fabric that the Trainer has as well.
inline auto shared_fields() {
  using O = train::FabricOptions;
  using N = decltype(O::numerics);
  return std::tuple_cat(
      std::tuple(Field{"device", &O::device}, Field{"devices", &O::devices},
                 Field{"num_nodes", &O::num_nodes}, Field{"precision", &O::precision},
                 Field{"strategy", &O::strategy}, Field{"collectives", &O::collectives}),
      fields_of(&O::numerics, std::tuple(Field{"accumulation", &N::accumulation},
                                         Field{"fp8_level", &N::fp8_level})),
      std::tuple(Field{"split_batches", &O::split_batches},
                 Field{"state_dict_type", &O::state_dict_type}));
}

/// What launch() of both does: a program that was started again as so many ranks ends there.
template <class T>
void launch(T& self) {
  const nb::object sys = nb::module_::import_("sys");
  // This interpreter, its options, and the program with its arguments.
  auto words = nb::cast<std::vector<std::string>>(sys.attr("orig_argv"));
  words[0] = nb::cast<std::string>(sys.attr("executable"));
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::optional<int> code;
  {
    const nb::gil_scoped_release unlocked;
    code = self.launch(static_cast<int>(words.size()), argv.data());
  }
  if (code) sys.attr("exit")(*code);
}
inline constexpr const char* kLaunchText =
    "With several devices, outside mpirun, torchrun and srun: starts this program again as so many "
    "ranks, waits, and ends with their exit code. Otherwise joins the ranks that are there.";

}  // namespace weft::python
