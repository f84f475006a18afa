// A kernel outside this tree: one file, which holds the variant and one line that lists it.
//
//   #include <weft/kernels/plugin.h>
//   #include <weft/kernels/softmax/softmax.h>
//
//   namespace weft::kernels {
//   void softmax_cpu_mine(const SoftmaxProblem& problem) { ... }
//   }  // namespace weft::kernels
//
//   WEFT_PLUGIN(softmax, softmax_cpu_mine, cpu, (DTypeSet{DType::f32}), fits_any)
//
// `weft kernels check softmax --plugin FILE` compiles it and takes it through the op's cases;
// WEFT_PLUGINS=FILE makes any program use it. Its row stands before those of the op's own list.
// docs/add-a-kernel.md shows the whole way. Inside this tree kernels are listed, not plugged in.
#pragma once

#include <cstddef>
#include <string_view>
#include <type_traits>

#include "core/version.h"
#include "kernels/op.h"

// What a plugin and the program that loads it must have in common. A literal: the loader would let
// a plugin's variable stand for the program's of the same name.
#if defined(_GLIBCXX_USE_CXX11_ABI) && _GLIBCXX_USE_CXX11_ABI
#define WEFT_PLUGIN_ABI "weft " WEFT_VERSION ", libstdc++ with the C++11 ABI"
#else
#define WEFT_PLUGIN_ABI "weft " WEFT_VERSION ", another standard library"
#endif

namespace weft::kernels {

struct OpTable;  // kernels/testing/op_table.h

inline constexpr int kPluginFormat = 1;  // of Plugin

/// What a plugin says of itself, as the symbol `weft_plugin`. Plain data: it is read before any
/// code of the plugin is trusted.
struct Plugin {
  int format;
  const char* abi;       // the WEFT_PLUGIN_ABI that it was compiled with
  const char* op;        // whose list it adds to, or which it brings
  const char* name;      // of the variant; null for an op
  const void* variant;   // a Variant of the op's problem; null for an op
  size_t problem_bytes;  // of the op's problem
  OpTable (*table)();    // of an op that it brings; null for a variant
};

/// The problem of an op, by its function: ProblemOf<decltype(softmax_op)> is SoftmaxProblem.
template <class>
struct ProblemOfOp;
template <class Problem>
struct ProblemOfOp<const Op<Problem>&()> {
  using Type = Problem;
};
template <class OpFunction>
using ProblemOf = typename ProblemOfOp<OpFunction>::Type;

/// A row whose function was looked at: a wrong one gets one line of the compiler's.
template <class Problem, class Run>
consteval Variant<Problem> plugin_row(std::string_view name, DeviceType device, DTypeSet dtypes,
                                      std::type_identity_t<bool (*)(const Problem&)> fits, Run run,
                                      std::string_view condition) {
  constexpr bool is_variant = std::is_same_v<Run, void (*)(const Problem&)>;
  static_assert(is_variant,
                "a variant is a function `void NAME(const PROBLEM&)` of its op's problem");
  if constexpr (is_variant) return {name, device, dtypes, fits, run, condition};
  return {};
}

/// The first row of the op's list below the one of that name which takes the problem; null when
/// there is none: for a variant that leaves some problems to others.
template <class Problem>
const Variant<Problem>* next_variant(const Op<Problem>& op, std::string_view name,
                                     const Problem& problem) {
  bool is_below = false;
  for (const Variant<Problem>& variant : op.variants) {
    if (is_below && takes(variant, problem)) return &variant;
    is_below = is_below || variant.name == name;
  }
  return nullptr;
}

}  // namespace weft::kernels

/// Makes the file a plugin that adds a variant to an op: a row as in the op's list, with the op's
/// name before it. Stands once in the plugin, outside of namespaces.
#define WEFT_PLUGIN(op, name, device, dtypes, fits)                                 \
  namespace weft::kernels {                                                         \
  static_assert(std::string_view(#name).starts_with(#op "_" #device "_"),           \
                "a variant is named <op>_<device>_<algorithm>");                    \
  static constexpr auto weft_plugin_row = plugin_row<ProblemOf<decltype(op##_op)>>( \
      #name, DeviceType::device, dtypes, fits, &name, #fits);                       \
  extern "C" {                                                                      \
  extern const Plugin weft_plugin;                                                  \
  constinit const Plugin weft_plugin = {                                            \
      kPluginFormat, WEFT_PLUGIN_ABI,  #op,                                         \
      #name,         &weft_plugin_row, sizeof(ProblemOf<decltype(op##_op)>),        \
      nullptr};                                                                     \
  }                                                                                 \
  }

/// Makes a folder of sources a plugin that brings an op of its own, whose NAME_cases.h the file
/// includes. Stands once in the plugin, outside of namespaces.
#define WEFT_PLUGIN_OP(op)                                                                         \
  namespace weft::kernels {                                                                        \
  extern "C" {                                                                                     \
  extern const Plugin weft_plugin;                                                                 \
  constinit const Plugin weft_plugin = {                                                           \
      kPluginFormat, WEFT_PLUGIN_ABI, #op, nullptr, nullptr, sizeof(ProblemOf<decltype(op##_op)>), \
      &op##_table};                                                                                \
  }                                                                                                \
  }
