// Shapes and dtypes that cross_entropy is tested and timed on.
#pragma once

#include "core/view.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/testing/op_table.h"

namespace weft::kernels {

struct CrossEntropyForm {
  DType dtype = DType::f32;
  bool hard = true;
  enum class Pass { kForward, kBackward, kBoth } pass = Pass::kForward;
  bool strided = false;
  double smoothing = 0;
};

inline CrossEntropyProblem cross_entropy_case(Inputs& in, int64_t rows, int64_t classes,
                                              const CrossEntropyForm& form) {
  const DType wide = form.dtype == DType::f64 ? DType::f64 : DType::f32;
  const auto layout = [&](Tensor t) { return form.strided ? in.strided(t) : t; };
  const auto output = [&](const Shape& shape, DType dtype) {
    return form.strided ? in.strided_output(shape, dtype) : in.output(shape, dtype);
  };
  CrossEntropyProblem p{.logits = layout(in.normal({rows, classes}, form.dtype, 3, 5)),
                        .label_smoothing = form.smoothing};
  if (form.hard) {
    Tensor labels = in.integers({rows}, DType::i64, 0, classes - 1);
    for (int64_t r = 3; r < rows; r += 7) labels.data<int64_t>()[r] = p.ignore_index;
    p.labels = layout(labels);
  } else {
    p.labels =
        layout(in.uniform({rows, classes}, form.dtype, 0, 2.0 / static_cast<double>(classes)));
  }
  using Pass = CrossEntropyForm::Pass;
  if (form.pass == Pass::kBackward) {
    // Near the log-sum-exp of normal(5, 3) logits, so that the softmax has its usual size.
    p.lse = layout(in.normal({rows}, wide, 0.5, 10 + std::log(static_cast<double>(classes))));
  } else {
    p.loss = output({rows}, wide);
    p.lse = output({rows}, wide);
  }
  if (form.pass != Pass::kForward) {
    p.dloss = layout(in.normal({rows}, wide));
    p.dlogits = output({rows, classes}, form.dtype);
  }
  return p;
}

inline OpTable cross_entropy_table() {
  using Problem = CrossEntropyProblem;
  using Pass = CrossEntropyForm::Pass;
  constexpr Pass kPasses[] = {Pass::kForward, Pass::kBackward, Pass::kBoth};
  constexpr std::string_view kPassNames[] = {"", "_backward", "_both"};
  std::vector<Case<Problem>> cases;
  const auto add = [&](int64_t rows, int64_t classes, CrossEntropyForm form, Cost cost = {}) {
    std::string name =
        fmt::format("{}x{}_{}_{}{}{}{}", rows, classes, form.dtype, form.hard ? "hard" : "soft",
                    kPassNames[static_cast<int>(form.pass)], form.smoothing == 0 ? "" : "_smoothed",
                    form.strided ? "_strided" : "");
    cases.push_back(
        {name, [=](Inputs& in) { return cross_entropy_case(in, rows, classes, form); }, cost});
  };
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (bool hard : {true, false}) {
      for (Pass pass : kPasses) {
        for (double smoothing : {0.0, 0.1}) {
          const CrossEntropyForm form{dtype, hard, pass, false, smoothing};
          for (int64_t classes : {1, 10, 15, 16, 17, 31, 32, 33, 127}) add(13, classes, form);
          add(0, 10, form);
          add(1, 1000, form);
          if (pass == Pass::kBoth) {  // rows at the edges of what registers hold, and any place
            for (int64_t classes : {255, 256, 257, 1024, 1025}) add(2, classes, form);
            add(9, 1027, form);
          }
          add(2, 4099, form);
          CrossEntropyForm strided = form;
          strided.strided = true;
          add(11, 37, strided);
        }
      }
    }
  }
  // ImageNet's and CIFAR's classes at usual batches, and a vocabulary.
  for (auto [rows, classes] : {std::pair{64, 10}, std::pair{64, 1000}, std::pair{32, 50257}}) {
    for (Pass pass : kPasses) {
      const double elements = static_cast<double>(rows) * classes;
      add(rows, classes, {DType::f32, true, pass, false, 0.1},
          {.flops = (pass == Pass::kBoth ? 8 : 4) * elements,
           .bytes = (pass == Pass::kForward ? 1 : 2) * elements * 4});
    }
  }
  // A scalar gradient expanded over the rows; a bf16 gradient of f32 logits.
  cases.push_back({"expanded_dloss", [](Inputs& in) {
                     Problem p = cross_entropy_case(in, 9, 20, {.pass = Pass::kBackward});
                     p.dloss = Tensor::view_of(p.dloss.storage(), {9}, {0}, 0, DType::f32);
                     return p;
                   }});
  cases.push_back({"bf16_dlogits", [](Inputs& in) {
                     return Problem{.logits = in.normal({9, 20}, DType::f32),
                                    .labels = in.integers({9}, DType::i64, 0, 19),
                                    .lse = in.normal({9}, DType::f32, 0.1, 3),
                                    .dloss = in.normal({9}, DType::f32),
                                    .dlogits = in.output({9, 20}, DType::bf16)};
                   }});
  // Gradients in the place of their logits; rows of a wider matrix, whose vectors lie elsewhere.
  for (int64_t classes : {37, 1027}) {
    cases.push_back({fmt::format("in_place_{}_bf16", classes), [=](Inputs& in) {
                       const Tensor loss = in.output({5}, DType::f32);
                       const Tensor lse = in.output({5}, DType::f32);
                       const Tensor x = in.inout(in.normal({5, classes}, DType::bf16, 3, 5));
                       return Problem{.logits = x,
                                      .labels = in.integers({5}, DType::i64, 0, classes - 1),
                                      .loss = loss,
                                      .lse = lse,
                                      .dloss = in.normal({5}, DType::f32),
                                      .dlogits = x};
                     }});
  }
  for (int64_t columns : {1032, 1036}) {
    cases.push_back(
        {fmt::format("1027_of_{}_bf16", columns), [=](Inputs& in) {
           Problem p = cross_entropy_case(in, 5, 1027, {.dtype = DType::bf16, .pass = Pass::kBoth});
           p.logits = view::narrow(in.normal({5, columns}, DType::bf16, 3, 5), 1, 0, 1027);
           return p;
         }});
  }
  // A long row far from zero; logits of -inf, for whole threads; a NaN among them; an infinity;
  // nothing but -inf.
  cases.push_back({"special_4099_f32", [](Inputs& in) {
                     constexpr int64_t kClasses = 4099;
                     Problem p = cross_entropy_case(in, 5, kClasses, {});
                     auto* const x = p.logits.data<float>();
                     for (int64_t c = 0; c < kClasses; ++c) {
                       x[c] += 1e6f;
                       if (c < 4000) x[kClasses + c] = x[2 * kClasses + c] = -INFINITY;
                       x[4 * kClasses + c] = -INFINITY;
                     }
                     x[2 * kClasses + 7] = NAN;
                     x[3 * kClasses + 4098] = INFINITY;
                     return p;
                   }});
  // A row far from zero, one class at -inf that is not the label, one that is, a NaN, an infinity.
  cases.push_back({"special_f32", [](Inputs& in) {
                     Tensor x =
                         in.values({1e6, 1e6 + 1, 1e6 - 2, 0, -INFINITY, 1, 0, -INFINITY, 1,  //
                                    0, NAN, 1, INFINITY, 0, 1},
                                   {5, 3}, DType::f32);
                     return Problem{.logits = x,
                                    .labels = in.values({0, 2, 1, 0, 1}, {5}, DType::i64),
                                    .loss = in.output({5}, DType::f32)};
                   }});
  return make_table(cross_entropy_op(), std::move(cases), cross_entropy_reference);
}

}  // namespace weft::kernels
