// Shapes and dtypes that reduce is tested and timed on.
#pragma once

#include "kernels/reduce/reduce.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {

inline OpTable reduce_table() {
  using Problem = ReduceProblem;
  std::vector<Case<Problem>> cases;
  const auto result_dtype = [](Reduction reduction, DType x) {
    switch (reduction) {
      case Reduction::kArgmax:
      case Reduction::kArgmin:
        return DType::i64;
      case Reduction::kAny:
      case Reduction::kAll:
        return DType::boolean;
      case Reduction::kMax:
      case Reduction::kMin:
        return x;
      case Reduction::kMean:
      case Reduction::kVar:
        return is_floating(x) ? x : DType::f32;
      default:
        return is_floating(x) ? x : DType::i64;
    }
  };
  enum class Layout { kContiguous, kStrided, kExpanded };
  // to: x's shape with 1 where it is reduced. Integers make sums exact.
  const auto add = [&](Reduction reduction, Shape from, Shape to, DType dtype, Layout layout,
                       bool integers, DType out, Cost cost = {}) {
    const char* layouts[] = {"", "_strided", "_expanded"};
    std::string name = fmt::format("{}_{}_to_{}_{}_{}{}{}", weft::kernels::name(reduction),
                                   to_string(from), to_string(to), dtype, out,
                                   integers ? "_integers" : "", layouts[static_cast<int>(layout)]);
    cases.push_back({name,
                     [=](Inputs& in) {
                       const bool positive = dtype == DType::u8 || dtype == DType::boolean;
                       const auto make = [&](const Shape& shape) {
                         if (integers)
                           return in.integers(shape, dtype, positive ? 0 : -3, positive ? 1 : 3);
                         if (reduction == Reduction::kProd)
                           return in.uniform(shape, dtype, 0.8, 1.2);
                         return in.uniform(shape, dtype, -1, 2);
                       };
                       Problem p{.reduction = reduction};
                       if (layout == Layout::kExpanded) {
                         // Repeated over its first axis.
                         Shape one = from;
                         one[0] = 1;
                         const Tensor x = make(one);
                         Strides strides = x.strides();
                         strides[0] = 0;
                         p.x = Tensor::view_of(x.storage(), from, strides, x.offset(), dtype);
                       } else {
                         p.x = layout == Layout::kStrided ? in.strided(make(from)) : make(from);
                       }
                       p.y = layout == Layout::kStrided ? in.strided_output(to, out)
                                                        : in.output(to, out);
                       return p;
                     },
                     cost});
  };
  const auto each = [&](Reduction reduction, DType dtype, bool integers) {
    const DType out = result_dtype(reduction, dtype);
    for (Layout layout : {Layout::kContiguous, Layout::kStrided, Layout::kExpanded}) {
      add(reduction, {4, 37}, {4, 1}, dtype, layout, integers, out);
      add(reduction, {33, 17}, {1, 17}, dtype, layout, integers, out);
      add(reduction, {3, 5, 7}, {1, 5, 1}, dtype, layout, integers, out);
      add(reduction, {3, 5, 7}, {3, 1, 7}, dtype, layout, integers, out);
      add(reduction, {2, 3, 5, 4}, {1, 1, 1, 1}, dtype, layout, integers, out);
      add(reduction, {3, 5}, {3, 5}, dtype, layout, integers, out);
    }
    add(reduction, {}, {}, dtype, Layout::kContiguous, integers, out);
  };
  const Reduction all_reductions[] = {Reduction::kSum, Reduction::kMean,       Reduction::kProd,
                                      Reduction::kVar, Reduction::kSumSquares, Reduction::kMax,
                                      Reduction::kMin, Reduction::kArgmax,     Reduction::kArgmin,
                                      Reduction::kAny, Reduction::kAll};
  for (Reduction reduction : all_reductions) {
    for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      each(reduction, dtype, false);
    }
    each(reduction, DType::f32, true);
    for (DType dtype : {DType::i64, DType::i32, DType::u8, DType::boolean}) {
      each(reduction, dtype, true);
    }
    for (DType dtype : {DType::tf32, DType::f8e4m3, DType::f8e5m2}) {
      add(reduction, {5, 33}, {5, 1}, dtype, Layout::kContiguous, true,
          is_floating(result_dtype(reduction, dtype)) && reduction != Reduction::kMax &&
                  reduction != Reduction::kMin
              ? DType::f32
              : result_dtype(reduction, dtype));
    }
  }
  // Lengths around vectors, blocks and chunks, as rows and as columns.
  for (Reduction reduction :
       {Reduction::kSum, Reduction::kSumSquares, Reduction::kVar, Reduction::kMax}) {
    for (DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      for (int64_t n : {15, 16, 17, 31, 32, 33, 127, 128, 129, 1023, 1024, 1025, 4099}) {
        add(reduction, {3, n}, {3, 1}, dtype, Layout::kContiguous, false, dtype);
        add(reduction, {n, 3}, {1, 3}, dtype, Layout::kContiguous, false, dtype);
        add(reduction, {17, n}, {1, n}, dtype, Layout::kContiguous, false, dtype);
      }
      add(reduction, {200003}, {1}, dtype, Layout::kContiguous, false, dtype);
    }
    // A narrow input with a wide result.
    add(reduction, {40, 65}, {40, 1}, DType::bf16, Layout::kContiguous, false,
        reduction == Reduction::kMax ? DType::bf16 : DType::f32);
  }
  // Around the 128 rows that a GPU's block sums, in columns that fit vectors and ones that do not.
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (int64_t n : {127, 128, 129, 300}) {
      add(Reduction::kSum, {n, 40}, {1, 40}, dtype, Layout::kContiguous, false, DType::f32);
      add(Reduction::kMean, {n, 13}, {1, 13}, dtype, Layout::kContiguous, false, dtype);
    }
    add(Reduction::kSum, {3, 130, 16}, {3, 1, 16}, dtype, Layout::kContiguous, true, DType::f32);
  }
  // More rows than a GPU's grid has blocks: each takes several, one after the other.
  add(Reduction::kSum, {4500, 3}, {4500, 1}, DType::f32, Layout::kContiguous, false, DType::f32);
  // Nothing to reduce, and nothing to make.
  for (Reduction reduction : {Reduction::kSum, Reduction::kMean, Reduction::kProd, Reduction::kVar,
                              Reduction::kSumSquares, Reduction::kAny, Reduction::kAll}) {
    add(reduction, {3, 0}, {3, 1}, DType::f32, Layout::kContiguous, false,
        result_dtype(reduction, DType::f32));
    add(reduction, {0, 3}, {0, 1}, DType::f32, Layout::kContiguous, false,
        result_dtype(reduction, DType::f32));
  }
  for (double odd : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    for (Reduction reduction : all_reductions) {
      for (Shape to : {Shape{4, 1}, Shape{1, 40}}) {
        cases.push_back(
            {fmt::format("{}_to_{}_{}", weft::kernels::name(reduction), to_string(to), odd),
             [=](Inputs& in) {
               Tensor x = in.integers({4, 40}, DType::f32);
               for (int64_t i : {7, 19, 45, 85}) x.data<float>()[i] = static_cast<float>(odd);
               return Problem{.x = x,
                              .y = in.output(to, result_dtype(reduction, DType::f32)),
                              .reduction = reduction,
                              .correction = 0};
             }});
      }
    }
  }
  // Equal terms, whose rounding errors all point the same way: one running f32 sum would drift.
  for (Shape from : {Shape{70001, 3}, Shape{3, 70001}}) {
    const Shape to = from[0] == 3 ? Shape{3, 1} : Shape{1, 3};
    cases.push_back({fmt::format("sum_of_equals_{}", to_string(from)), [=](Inputs& in) {
                       return Problem{.x = in.values({0.1}, from, DType::f32),
                                      .y = in.output(to, DType::f32)};
                     }});
  }
  cases.push_back({"var_of_one", [](Inputs& in) {
                     return Problem{.x = in.normal({3, 1}, DType::f32),
                                    .y = in.output({3, 1}, DType::f32),
                                    .reduction = Reduction::kVar};
                   }});
  cases.push_back({"var_with_a_large_mean", [](Inputs& in) {
                     return Problem{.x = in.normal({5, 3000}, DType::f32, 1, 1e4),
                                    .y = in.output({5, 1}, DType::f32),
                                    .reduction = Reduction::kVar};
                   }});
  // Numbers whose squares are beyond f32, or below it, though what comes of them is not.
  for (Shape to : {Shape{40, 1}, Shape{1, 65}}) {
    for (const auto& [reduction, std, out] :
         {std::tuple{Reduction::kVar, 1e19, DType::f32},
          std::tuple{Reduction::kVar, 1e30, DType::f64},
          std::tuple{Reduction::kSumSquares, 1e30, DType::f64},
          std::tuple{Reduction::kVar, 1e-23, DType::f64},
          std::tuple{Reduction::kSumSquares, 1e-23, DType::f64}}) {
      cases.push_back(
          {fmt::format("{}_{}_of_{}", weft::kernels::name(reduction), to_string(to), std),
           [=](Inputs& in) {
             return Problem{.x = in.normal({40, 65}, DType::f32, std),
                            .y = in.output(to, out),
                            .reduction = reduction};
           }});
    }
  }
  // Bias gradients of ViT-B/16 at batch 4 and of the compact model at batch 64; rows; everything.
  const auto timed = [&](Reduction reduction, Shape from, Shape to, DType dtype, DType out) {
    const double elements = static_cast<double>(numel(from));
    add(reduction, from, to, dtype, Layout::kContiguous, false, out,
        {.flops = elements, .bytes = elements * static_cast<double>(itemsize(dtype))});
  };
  for (DType dtype : {DType::f32, DType::bf16}) {
    timed(Reduction::kSum, {788, 768}, {1, 768}, dtype, DType::f32);
    timed(Reduction::kSum, {788, 3072}, {1, 3072}, dtype, DType::f32);
    timed(Reduction::kSum, {4160, 192}, {1, 192}, dtype, DType::f32);
    timed(Reduction::kMean, {788, 768}, {788, 1}, dtype, dtype);
    timed(Reduction::kSum, {788, 768}, {1, 1}, dtype, DType::f32);
  }
  timed(Reduction::kSum, {4, 197, 768}, {1, 197, 768}, DType::f32, DType::f32);
  timed(Reduction::kSumSquares, {788, 768}, {788, 1}, DType::f32, DType::f32);
  timed(Reduction::kMax, {788, 768}, {788, 1}, DType::f32, DType::f32);
  timed(Reduction::kVar, {788, 768}, {1, 768}, DType::f32, DType::f32);
  timed(Reduction::kArgmax, {64, 1000}, {64, 1}, DType::f32, DType::i64);
  return make_table(reduce_op(), std::move(cases), reduce_reference);
}

}  // namespace weft::kernels
