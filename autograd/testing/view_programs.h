// Random programs of views, in-place ops, NoGrad and detach, and a slow interpreter of them that
// shares nothing with tensors, views or the tape: what the tape is held against.
//
// A program is a list of instructions on numbered variables; in-place instructions change one, all
// others define the next. At the end a weighted sum of some of the variables is differentiated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/shape.h"

namespace weft::view_programs {

enum class Kind {
  // Views: of variable a.
  kSlice,      // numbers: dim, begin, end, step
  kSelect,     // dim, index
  kTranspose,  // two dims
  kExpand,     // shape
  kView,       // shape
  kUnsqueeze,  // dim
  kDetach,
  // New variables, from a and b.
  kClone,
  kSin,
  kAdd,
  kMul,
  // In place on a, with b or, where there is none, the scalar.
  kAddInPlace,  // a += alpha b, the scalar being alpha
  kMulInPlace,
  kCopyInPlace,
  kFillInPlace,  // with the scalar
};

struct Instruction {
  Kind kind;
  bool is_recorded = true;  // false: under NoGrad
  int a = 0, b = -1;        // variables
  Shape numbers = {};
  double scalar = 0;
};

struct Input {
  Shape shape;
  std::vector<double> values;
  bool requires_grad;
};

struct Program {
  std::vector<Input> inputs;  // the first variables
  std::vector<Instruction> instructions;
  std::vector<int> outputs;  // variables of the sum
};

/// The weight of element i of output k in the final sum.
inline double weight(int k, int64_t i) { return static_cast<double>((i * 7 + k * 3) % 11) - 4.5; }

/// What a program computes, or why it was refused.
struct Outcome {
  std::string refusal;                      // empty: none
  std::vector<std::vector<double>> values;  // of every variable, at the end
  std::vector<double> gradients;            // of the inputs that require them, one after the other
};

/// Words of the engine's messages, one for each kind of refusal that a program may meet.
extern const std::vector<std::string> kRefusalKinds;
/// The one of these that a message has; empty for none.
std::string refusal_kind(const std::string& message);

/// The same program for the same seed, always.
Program random_program(uint64_t seed);

/// Storage is an array of numbers; each carries its derivatives by every input element along. A
/// variable is a list of places in such an array. The refusals are those that PyTorch makes too and
/// without which a gradient or a value would be lost.
Outcome interpret(const Program& program);

/// Runs it with tensors and the tape.
Outcome run(const Program& program);

/// The program for PyTorch, as Python source: for messages, and for benchmarks/pytorch.
std::string python_source(const Program& program);

}  // namespace weft::view_programs
