// An op with its cases, type-erased: what the generic test, the bench and the kernel lab run over.
//
// An op's NAME_cases.h defines `OpTable NAME_table()`. A case makes a problem from an Inputs, which
// fills every tensor from a seed that depends on the op and the case alone:
//
//   inline OpTable softmax_table() {
//     std::vector<Case<SoftmaxProblem>> cases;
//     for (DType dtype : {DType::f32, DType::bf16}) {
//       cases.push_back({fmt::format("33x127_{}", dtype), [=](Inputs& in) {
//                          Tensor x = in.normal({33, 127}, dtype);
//                          return SoftmaxProblem{.x = x, .y = in.output({33, 127}, dtype), .axis =
//                          1};
//                        }});
//     }
//     return make_table(softmax_op(), std::move(cases), softmax_reference);
//   }
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/philox.h"
#include "core/runtime.h"
#include "kernels/op.h"
#include "kernels/testing/device_copies.h"

namespace weft::kernels {

/// Makes the tensors of one case. Outputs come back in the order they were made; the reference's
/// Expected list has the same order.
class Inputs {
 public:
  explicit Inputs(uint64_t seed) : random_(seed) {}

  /// Standard normal times scale plus shift, rounded to the dtype.
  Tensor normal(const Shape& shape, DType dtype, double scale = 1, double shift = 0);
  /// Integers in [low, high]: small enough that sums are exact.
  Tensor integers(const Shape& shape, DType dtype, int64_t low = -3, int64_t high = 3);
  /// Uniform in [low, high).
  Tensor uniform(const Shape& shape, DType dtype, double low, double high);
  /// These values, cycled through as often as the shape needs.
  Tensor values(const std::vector<double>& values, const Shape& shape, DType dtype);
  /// The same values with gaps: every dimension is strided, the gaps hold NaN (or -1), and the
  /// first element lies off any alignment but its own.
  Tensor strided(const Tensor& x);

  /// An output: contiguous, filled with NaN (or 0x7f.. integers), with guard words on both sides.
  Tensor output(const Shape& shape, DType dtype);
  /// An output that starts as `initial` because the op reads it: `+=` ops and in-place updates.
  Tensor inout(const Tensor& initial);
  /// An output of a strided layout; its gaps must stay untouched.
  Tensor strided_output(const Shape& shape, DType dtype);
  /// An output whose rows (the last dimension) are dense but lie apart: columns of a wider buffer.
  Tensor row_strided_output(const Shape& shape, DType dtype);

  const std::vector<Tensor>& outputs() const { return outputs_; }
  /// True when nothing was written outside the outputs.
  bool guards_are_intact() const;

 private:
  Tensor guarded(const Shape& shape, const Strides& strides, int64_t span, DType dtype);

  Philox random_;
  std::vector<Tensor> outputs_;
};

/// Work of a case: what the roofline and the rates are computed from.
struct Cost {
  double flops = 0;
  double bytes = 0;
};

template <class Problem>
struct Case {
  std::string name;
  std::function<Problem(Inputs&)> make;
  Cost cost = {};  // 0: not benchmarked
  /// Timed on GPUs alone, and checked only where it is named: it would take a CPU minutes.
  bool is_large = false;
  /// Where not empty: on the emulated device only variants with this in their names run it, unless
  /// it is named. For large cases that say nothing new of the others.
  std::string emulated_on = {};
};

/// Why a variant did not run: it does not take the problem, or this machine lacks its device.
enum class Ran : uint8_t { kYes, kDoesNotFit, kNoDevice };

/// A case ready to be timed on a device, its memory there and filled.
struct Workload {
  DType dtype;                  // by which dispatch, and the device's peak, are chosen
  std::vector<Tensor> memory;   // every storage of the problem, as bytes
  std::vector<Tensor> outputs;  // those of them that a run changes
  std::function<bool(std::string_view variant)> fits;
  /// Submits the variant's work; does not wait for a device.
  std::function<void(std::string_view variant)> run;
};

/// A case bound to its op.
struct CaseEntry {
  std::string name;
  Cost cost;
  bool is_large = false;
  std::string emulated_on = {};
  uint64_t seed = 0;
  /// Fills `in` and returns a function that runs a variant (empty: what dispatch takes). A variant
  /// of another device than the CPU gets the problem's memory copied there, and back.
  std::function<std::function<Ran(std::string_view variant)>(Inputs& in)> make;
  std::function<std::vector<Expected>()> expected;
  std::function<Workload(Inputs& in, Device device)> prepare;

  bool is_timed() const { return cost.flops != 0 || cost.bytes != 0; }
};

struct OpTable {
  struct Row {
    std::string name;
    DeviceType device = DeviceType::cpu;
    DTypeSet dtypes;
    std::string condition;  // as the op's list writes it
  };
  std::string name;
  std::vector<Row> variants;
  std::vector<CaseEntry> cases;
  /// A timed case of a shape that the caller wrote, such as 4096x4096x1024; nothing when the text
  /// is none. Ops that cannot make one leave it empty.
  std::function<std::optional<CaseEntry>(std::string_view shape, DType dtype)> of_shape;
  /// Widths of a tile that a variant chooses among, and what has it take one of them from now on in
  /// this thread; 0: its own choice.
  std::vector<int> tiles;
  void (*force_tile)(int width, int blocks) = nullptr;
};

/// FNV-1a of "op/case": printed on failure, so that one case can be repeated.
uint64_t case_seed(std::string_view op, std::string_view name);

template <class Problem>
const Variant<Problem>* find_variant(const Op<Problem>& op, std::string_view name) {
  for (const Variant<Problem>& variant : op.variants) {
    if (variant.name == name) return &variant;
  }
  return nullptr;
}

/// Runs a variant (empty: what dispatch takes) on the problem's copy on the variant's device.
template <class Problem>
Ran run_on_its_device(const Op<Problem>& op, const Problem& problem, std::string_view name) {
  if (name.empty()) {
    dispatch(op, problem);
    return Ran::kYes;
  }
  const auto run = [&op](const Variant<Problem>& variant, const Problem& p) {
    if (!takes(variant, p)) return Ran::kDoesNotFit;
    run_variant(op, variant, p);
    return Ran::kYes;
  };
  const Variant<Problem>* const variant = find_variant(op, name);
  if (!variant) return Ran::kDoesNotFit;
  if (variant->device == DeviceType::cpu) return run(*variant, problem);
  if (runtime::device_count() == 0) return Ran::kNoDevice;
  DeviceCopies copies(Device{variant->device, 0});
  const Problem moved = copies.move(problem);
  const Ran ran = run(*variant, moved);
  if (ran == Ran::kYes) copies.bring_back();
  return ran;
}

template <class Problem>
Workload workload_on(const Op<Problem>& op, Problem problem, const std::vector<Tensor>& outputs,
                     Device device) {
  Workload work;
  DeviceCopies copies(device);
  if (device.type != DeviceType::cpu) problem = copies.move(problem);
  std::set<std::shared_ptr<Storage>> seen;
  for_each_tensor(problem, [&](Tensor& tensor) {
    if (tensor.defined() && seen.insert(tensor.storage()).second) {
      work.memory.push_back(bytes_of(tensor.storage()));
    }
  });
  for (const Tensor& output : outputs) {
    work.outputs.push_back(
        bytes_of(device.type == DeviceType::cpu ? output.storage() : copies.copy_of(output)));
  }
  work.dtype = problem.dtype();
  work.fits = [&op, problem](std::string_view name) {
    const Variant<Problem>* const variant = find_variant(op, name);
    return variant && takes(*variant, problem);
  };
  work.run = [&op, problem](std::string_view name) {
    run_variant(op, *find_variant(op, name), problem);
  };
  return work;
}

template <class Problem>
CaseEntry make_entry(const Op<Problem>& op, const Case<Problem>& c,
                     std::vector<Expected> (*reference)(const Problem&)) {
  CaseEntry entry{.name = c.name,
                  .cost = c.cost,
                  .is_large = c.is_large,
                  .emulated_on = c.emulated_on,
                  .seed = case_seed(op.name, c.name)};
  entry.make = [&op, make = c.make](Inputs& in) -> std::function<Ran(std::string_view)> {
    return [&op, problem = make(in)](std::string_view name) {
      return run_on_its_device(op, problem, name);
    };
  };
  entry.expected = [reference, make = c.make, seed = entry.seed] {
    Inputs in(seed);
    return reference(make(in));
  };
  entry.prepare = [&op, make = c.make](Inputs& in, Device device) {
    Problem problem = make(in);
    return workload_on(op, std::move(problem), in.outputs(), device);
  };
  return entry;
}

template <class Problem>
OpTable make_table(const Op<Problem>& op, const std::vector<Case<Problem>>& cases,
                   std::vector<Expected> (*reference)(const Problem&)) {
  OpTable table;
  table.name = std::string(op.name);
  for (const Variant<Problem>& variant : op.variants) {
    table.variants.push_back({std::string(variant.name), variant.device, variant.dtypes,
                              std::string(variant.condition)});
  }
  for (const Case<Problem>& c : cases) table.cases.push_back(make_entry(op, c, reference));
  return table;
}

/// Result of checking one variant on one case.
struct CheckResult {
  Ran ran = Ran::kDoesNotFit;
  std::string failure;  // empty when it passed
  double max_error = 0;
  double bound_used = 0;  // largest error divided by its bound
};

/// Runs a variant twice and at 1, 2, 3 and 8 threads, one of another device twice; compares with
/// the reference, the runs with each other bit for bit, and looks at the guards.
CheckResult check_case(const OpTable& table, const CaseEntry& entry, const std::string& variant,
                       const std::vector<Expected>& expected);

}  // namespace weft::kernels
