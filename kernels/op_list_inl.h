// An op made of its list, kernels/NAME/NAME.inc: the variants' declarations, NAME_op(), and NAME(),
// which dispatches. An op's source includes this once, in weft::kernels, where the conditions of
// its list are known:
//
//   #define WEFT_OP softmax
//   #define WEFT_PROBLEM SoftmaxProblem
//   #include "kernels/op_list_inl.h"
//
// With another WEFT_LIST, a path, there is no NAME(). No #pragma once: a source may make several
// ops. What is declared here of plugins is kernels/plugins/load.h's. The source includes <atomic>,
// by way of kernels/op.h.

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

extern std::atomic<int> plugin_changes;
std::vector<const void*> plugin_rows(std::string_view op, size_t problem_bytes,
                                     const std::vector<std::string_view>& listed);

const Op<WEFT_PROBLEM>& WEFT_OP_FUNCTION(WEFT_OP)() {
  // Made anew after a plugin was loaded. None is freed: another thread may be looking through it.
  struct List {
    int changes;
    const List* before;
    std::vector<Variant<WEFT_PROBLEM>> rows;
    Op<WEFT_PROBLEM> op;
  };
  static std::atomic<const List*> last = nullptr;
  const List* list = last.load(std::memory_order_acquire);
  for (;;) {
    const int changes = plugin_changes.load(std::memory_order_acquire);
    if (list && list->changes == changes) [[likely]] {
      return list->op;
    }
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
    auto made = std::make_unique<List>(List{changes, list, std::move(rows), {}});
    made->op = {WEFT_OP_TEXT(WEFT_OP), made->rows};
    // Else another thread was first, and its list is the one to look at.
    if (last.compare_exchange_strong(list, made.get(), std::memory_order_acq_rel)) {
      list = made.release();
    }
  }
}

#undef WEFT_OP_TEXT
#undef WEFT_TEXT
#undef WEFT_OP_FUNCTION
#undef WEFT_JOIN
#undef WEFT_LIST
#undef WEFT_PROBLEM
#undef WEFT_OP
