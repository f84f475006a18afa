// An op made of its list, kernels/NAME/NAME.inc: the variants' declarations, NAME_op(), and NAME(),
// which dispatches. An op's source includes this once, in weft::kernels, where the conditions of
// its list are known:
//
//   #define WEFT_OP softmax
//   #define WEFT_PROBLEM SoftmaxProblem
//   #include "kernels/op_list_inl.h"
//
// With another WEFT_LIST, a path, there is no NAME(). No #pragma once: a source may make several
// ops. plugin_rows() is declared by kernels/plugins/load.h.

#define WEFT_JOIN(a, b) a##b
#define WEFT_OP_FUNCTION(op) WEFT_JOIN(op, _op)
#define WEFT_TEXT(text) #text
#define WEFT_OP_TEXT(op) WEFT_TEXT(op)

#ifndef WEFT_LIST
// clang-format off
#define WEFT_LIST WEFT_OP_TEXT(kernels/WEFT_OP/WEFT_OP.inc)
// clang-format on
const Op<WEFT_PROBLEM>& WEFT_OP_FUNCTION(WEFT_OP)();
void WEFT_OP(const WEFT_PROBLEM& problem) { dispatch(WEFT_OP_FUNCTION(WEFT_OP)(), problem); }
#endif

#define WEFT_VARIANT(name, device, dtypes, fits) void name(const WEFT_PROBLEM&);
#include WEFT_LIST
#undef WEFT_VARIANT

std::vector<const void*> plugin_rows(std::string_view op, size_t problem_bytes,
                                     const std::vector<std::string_view>& listed);

const Op<WEFT_PROBLEM>& WEFT_OP_FUNCTION(WEFT_OP)() {
  static const auto& kRows = *new const std::vector<Variant<WEFT_PROBLEM>>([] {
#define WEFT_VARIANT(name, device, dtypes, fits) \
  Variant<WEFT_PROBLEM>{#name, DeviceType::device, dtypes, fits, name, #fits},
    static constexpr Variant<WEFT_PROBLEM> kListed[] = {
#include WEFT_LIST
    };
#undef WEFT_VARIANT
    std::vector<std::string_view> names;
    for (const auto& row : kListed) names.push_back(row.name);
    // Those of plugins first: they are what the user asks for.
    std::vector<Variant<WEFT_PROBLEM>> rows;
    for (const void* row : plugin_rows(WEFT_OP_TEXT(WEFT_OP), sizeof(WEFT_PROBLEM), names)) {
      rows.push_back(*static_cast<const Variant<WEFT_PROBLEM>*>(row));
    }
    rows.insert(rows.end(), std::begin(kListed), std::end(kListed));
    return rows;
  }());
  static const Op<WEFT_PROBLEM> kOp = {WEFT_OP_TEXT(WEFT_OP), kRows};
  return kOp;
}

#undef WEFT_OP_TEXT
#undef WEFT_TEXT
#undef WEFT_OP_FUNCTION
#undef WEFT_JOIN
#undef WEFT_LIST
#undef WEFT_PROBLEM
#undef WEFT_OP
