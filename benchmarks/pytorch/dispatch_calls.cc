// Tiny operations as C++ calls them, of Weft or, with WEFT_BESIDE_TORCH, of PyTorch: a half of
// benchmarks/pytorch/dispatch_cpp.py, which builds this twice.
//
// Each line of standard input asks for a round of the case it names: the answer is the nanoseconds
// of a call. The cases are listed on the first line. One thread.
#include <chrono>
#include <functional>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#ifdef WEFT_BESIDE_TORCH
#include <torch/torch.h>
namespace ops = torch;
using torch::NoGradGuard;
using torch::Tensor;
#else
#include "autograd/backward.h"
#include "autograd/ops.h"
#include "core/parallel.h"
namespace ops = weft::ops;
using NoGradGuard = weft::NoGrad;
using weft::Tensor;
#endif

namespace {

void use_one_thread() {
#ifdef WEFT_BESIDE_TORCH
  torch::set_num_threads(1);
#else
  weft::set_num_threads(1);
#endif
}

void run_backward(const Tensor& loss) {
#ifdef WEFT_BESIDE_TORCH
  loss.backward();
#else
  weft::backward(loss);
#endif
}

struct Case {
  std::string name;
  std::function<void(int)> repeat;  // that many calls
};

/// f without recording, and with the tape where x, or the matrix m, requires a gradient.
template <class F>
void add_cases(std::vector<Case>& cases, const std::string& name, F f) {
  const auto inputs = [](bool requires_grad) {
    Tensor x = ops::ones({4}), m = ops::ones({4, 4});
    x.set_requires_grad(requires_grad);
    m.set_requires_grad(requires_grad);
    return std::pair(x, m);
  };
  cases.push_back({name, [f, in = inputs(false)](int calls) {
                     const NoGradGuard guard;
                     for (int i = 0; i < calls; ++i) f(in.first, in.second);
                   }});
  cases.push_back({name + ", recorded", [f, in = inputs(true)](int calls) {
                     for (int i = 0; i < calls; ++i) f(in.first, in.second);
                   }});
}

std::vector<Case> all_cases() {
  using T = const Tensor&;
  std::vector<Case> cases;
  const Tensor y = ops::ones({4}), n = ops::ones({4, 4});
  add_cases(cases, "add", [y](T x, T) { return ops::add(x, y); });
  add_cases(cases, "mul", [y](T x, T) { return ops::mul(x, y); });
  add_cases(cases, "matmul", [n](T, T m) { return ops::matmul(m, n); });
  add_cases(cases, "relu", [](T x, T) { return ops::relu(x); });
  add_cases(cases, "sum", [](T x, T) { return ops::sum(x); });
  add_cases(cases, "reshape", [](T x, T) { return ops::reshape(x, {2, 2}); });
  add_cases(cases, "slice", [](T x, T) { return ops::slice(x, 0, 1, 3); });
  const Tensor m = ops::ones({4, 4});
  Tensor p = ops::ones({4, 4});
  p.set_requires_grad(true);
  cases.push_back({"backward of relu(p m) summed", [m, p](int calls) {
                     for (int i = 0; i < calls; ++i) {
                       run_backward(ops::sum(ops::relu(ops::matmul(p, m))));
                     }
                   }});
  return cases;
}

}  // namespace

int main() {
  use_one_thread();
  const std::vector<Case> cases = all_cases();
  for (const Case& c : cases) std::cout << c.name << (&c == &cases.back() ? "\n" : ";");
  std::cout << std::flush;
  constexpr int kCalls = 500;  // a fraction of the time that a scheduler gives a program at once
  for (std::string name; std::getline(std::cin, name);) {
    for (const Case& c : cases) {
      if (c.name != name) continue;
      c.repeat(kCalls / 10);
      const auto begin = std::chrono::steady_clock::now();
      c.repeat(kCalls);
      const std::chrono::duration<double, std::nano> time =
          std::chrono::steady_clock::now() - begin;
      std::cout << time.count() / kCalls << std::endl;
    }
  }
}
