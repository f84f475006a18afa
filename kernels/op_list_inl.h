// An op made of its list, kernels/NAME/NAME.inc: the variants' declarations, NAME_op(), and NAME(),
// which dispatches. An op's source includes this once, in weft::kernels, where the conditions of
// its list are known:
//
//   #define WEFT_OP softmax
//   #define WEFT_PROBLEM SoftmaxProblem
//   #include "kernels/op_list_inl.h"
//
// With another WEFT_LIST, a path, there is no NAME(). No #pragma once: a source may make several
// ops.

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

const Op<WEFT_PROBLEM>& WEFT_OP_FUNCTION(WEFT_OP)() {
#define WEFT_VARIANT(name, device, dtypes, fits) \
  Variant<WEFT_PROBLEM>{#name, DeviceType::device, dtypes, fits, name, #fits},
  static constexpr Variant<WEFT_PROBLEM> kVariants[] = {
#include WEFT_LIST
  };
#undef WEFT_VARIANT
  static constexpr Op<WEFT_PROBLEM> kOp = {WEFT_OP_TEXT(WEFT_OP), kVariants};
  return kOp;
}

#undef WEFT_OP_TEXT
#undef WEFT_TEXT
#undef WEFT_OP_FUNCTION
#undef WEFT_JOIN
#undef WEFT_LIST
#undef WEFT_PROBLEM
#undef WEFT_OP
