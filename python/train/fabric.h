// What Fabric and the Trainer are told alike, and how they begin.
#pragma once

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/variant.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/runtime.h"
#include "python/options.h"
#include "train/fabric.h"

namespace weft::python {

/// Lightning's word for the device: "cpu", "cuda", "gpu" or "auto", a GPU where there is one.
struct Accelerator {
  std::string* device;
  void operator=(const std::optional<std::string>& given) const {
    if (!given) return;
    std::string name = *given == "gpu" ? "cuda" : *given;
    if (name == "auto") name = runtime::device_count() > 0 ? "cuda" : "cpu";
    WEFT_CHECK(name == "cpu" || name == "cuda",
               "accelerator: expected cpu, cuda, gpu or auto, got \"{}\"", *given);
    WEFT_CHECK(*device == "cpu" || parse_device(*device).type == parse_device(name).type,
               "accelerator: expected one of accelerator and device, got {} and {}", *given,
               *device);
    if (*device == "cpu") *device = name;
  }
};
template <>
struct Conversion<Accelerator> {
  using Argument = std::optional<std::string>;
  static Argument to_python(const Accelerator&) { return {}; }
  static Argument from_python(Argument argument) { return argument; }
};

/// A name, or its short form as a number.
struct PrecisionName {
  std::string* precision;
  void operator=(const std::variant<std::string, int>& given) const {
    const int* const bits = std::get_if<int>(&given);
    *precision = bits ? std::to_string(*bits) : std::get<std::string>(given);
  }
};
template <>
struct Conversion<PrecisionName> {
  using Argument = std::variant<std::string, int>;
  static Argument to_python(const PrecisionName& name) { return *name.precision; }
  static Argument from_python(Argument argument) { return argument; }
};

/// "dynamic", "none", or a scale that stays.
struct LossScale {
  train::NumericsOptions* numerics;
  void operator=(const std::variant<std::string, double>& given) const {
    const double* const fixed = std::get_if<double>(&given);
    if (fixed) {
      numerics->loss_scale.init_scale = *fixed;
      numerics->loss_scale_is_fixed = true;
      return;
    }
    const auto& name = std::get<std::string>(given);
    WEFT_CHECK(name == "dynamic" || name == "none",
               "loss_scale: expected \"dynamic\", \"none\" or a number, got \"{}\"", name);
    numerics->loss_scale.enabled = name == "dynamic";
  }
};
/// None could be either of the names, so it is refused.
template <>
struct Conversion<LossScale> {
  using Given = std::variant<std::string, double>;
  using Argument = std::optional<Given>;
  static Argument to_python(const LossScale&) { return Given("dynamic"); }
  static Given from_python(Argument argument) {
    WEFT_CHECK(argument, "loss_scale: expected \"dynamic\", \"none\" or a number, got None");
    return *std::move(argument);
  }
};

template <>
struct Names<Fp8Options::Scaling> {
  static constexpr const char* kOption = "fp8_scaling";
  static constexpr NameList<Fp8Options::Scaling> kAll = {
      {"current", Fp8Options::Scaling::kCurrent}, {"delayed", Fp8Options::Scaling::kDelayed}};
};
template <>
struct Names<kernels::Tf32> {
  static constexpr const char* kOption = "tf32_rounding";
  static constexpr NameList<kernels::Tf32> kAll = {{"truncate", kernels::Tf32::kTruncate},
                                                   {"nearest", kernels::Tf32::kNearest}};
};

/// Several objects, one without a list, or None.
template <class T>
struct OneOrSeveral {
  using All = std::vector<std::shared_ptr<T>>;
  using Argument = std::optional<std::variant<All, std::shared_ptr<T>>>;
  static Argument to_python(const All&) { return {}; }
  static All from_python(Argument argument) {
    if (!argument) return {};
    auto* const one = std::get_if<std::shared_ptr<T>>(&*argument);
    return one ? All{std::move(*one)} : std::get<All>(std::move(*argument));
  }
};
template <>
struct Conversion<std::vector<std::shared_ptr<train::Logger>>> : OneOrSeveral<train::Logger> {};

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
  using S = optim::GradScalerOptions;
  return std::tuple_cat(
      std::tuple(WEFT_FIELD(O, device),
                 Field{"accelerator", [](O& o) { return Accelerator{&o.device}; }},
                 WEFT_FIELD(O, devices), WEFT_FIELD(O, num_nodes),
                 Field{"precision", [](O& o) { return PrecisionName{&o.precision}; }},
                 WEFT_FIELD(O, strategy), WEFT_FIELD(O, collectives)),
      fields_of(
          &O::numerics,
          std::tuple_cat(
              fields_of(&N::loss_scale, std::tuple(Field{"initial_loss_scale", &S::init_scale},
                                                   Field{"loss_scale_window", &S::growth_interval},
                                                   Field{"loss_scale_growth", &S::growth_factor},
                                                   Field{"loss_scale_backoff", &S::backoff_factor},
                                                   Field{"loss_scale_hysteresis", &S::hysteresis},
                                                   Field{"min_loss_scale", &S::min_scale})),
              std::tuple(Field{"loss_scale", [](N& n) { return LossScale{&n}; }}),
              fields_of(&N::fp8, std::tuple(Field{"fp8_scaling", &Fp8Options::scaling},
                                            Field{"fp8_history", &Fp8Options::history},
                                            Field{"fp8_margin", &Fp8Options::margin})),
              std::tuple(WEFT_FIELD(N, fp8_level), WEFT_FIELD(N, accumulation),
                         WEFT_FIELD(N, tf32_rounding)))),
      std::tuple(WEFT_FIELD(O, split_batches), WEFT_FIELD(O, state_dict_type)));
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
