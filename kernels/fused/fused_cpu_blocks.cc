// The program step by step over blocks of 1024 elements that stay in L1. A step is the loop, with
// the conversions around it, that the op's own variant runs on a block, so that its bits are the
// same. Dense operands are read, and dense results written, where they lie.
// Limited by memory and by arithmetic in turn: steps that read operands wait for them, and others
// leave the memory idle. 16-bit floats, which every step rounds, gain nothing yet.
#include <memory>

#include "kernels/elementwise/block_io.h"
#include "kernels/fused/fused.h"
#include "kernels/where/where.h"

namespace weft::kernels {
namespace {

static_assert(kMaxFusedOperands <= Walk::kMaxOperands);

/// A tensor of the walk, in its own dtype.
class Operand {
 public:
  Operand(const Walk& walk, int index, const Tensor& tensor)
      : memory_(static_cast<char*>(tensor.raw())),
        row_bytes_(walk.shape().back() * static_cast<int64_t>(tensor.itemsize())),
        itemsize_(static_cast<int64_t>(tensor.itemsize())) {
    if (!walk.is_dense(index)) {
      elsewhere_ = std::make_unique<BlockIo>(walk, index, tensor, tensor.dtype());
    }
  }
  const void* read(const Block& block) {
    return elsewhere_ ? elsewhere_->read(block) : in_place(block);
  }
  void* target(const Block& block) {
    return elsewhere_ ? elsewhere_->target(block) : in_place(block);
  }
  void commit(const Block& block) {
    if (elsewhere_) elsewhere_->commit(block);
  }

 private:
  void* in_place(const Block& block) const {
    return memory_ + block.row * row_bytes_ + block.column * itemsize_;
  }

  char* memory_;
  int64_t row_bytes_, itemsize_;
  std::unique_ptr<BlockIo> elsewhere_;
};

/// A step with its loop; a cast has none.
struct PlannedStep {
  std::variant<std::monostate, UnaryLoop, BinaryLoop, WhereLoop> loop;
  int count;                      // of operands
  std::array<int, 3> operands;    // values
  std::array<DType, 3> from, as;  // the operands' dtypes, and those that the loop reads
  DType result, dtype;            // the dtype that it writes, and the value's
  double alpha;
  int value, buffer, output;  // where the result goes: a buffer, or the output if >= 0
};

struct Plan {
  std::vector<PlannedStep> steps;
  int buffers;

  explicit Plan(const FusedProblem& p) {
    const FusedRegisters registers = fused_registers(p);
    buffers = registers.count;
    for (const FusedStep& step : p.steps) {
      PlannedStep plan = planned(p, step);
      plan.value = static_cast<int>(p.inputs.size() + steps.size());
      plan.buffer = registers.of[plan.value];
      const auto output = std::ranges::find(p.results, plan.value);
      plan.output = output == p.results.end() ? -1 : static_cast<int>(output - p.results.begin());
      steps.push_back(plan);
    }
  }

 private:
  static PlannedStep planned(const FusedProblem& p, const FusedStep& step) {
    PlannedStep plan = {.loop = {},
                        .count = operands_of(step),
                        .operands = step.operands,
                        .result = step.dtype,
                        .dtype = step.dtype,
                        .alpha = step.alpha};
    for (int k = 0; k < plan.count; ++k) plan.from[k] = p.dtype_of(step.operands[k]);
    plan.as = plan.from;
    if (const auto* unary = std::get_if<UnaryOp>(&step.op)) {
      const UnaryBlocks blocks = unary_blocks(*unary, plan.from[0], step.dtype);
      plan.loop = blocks.loop;
      plan.as[0] = blocks.type;
      plan.result = blocks.result;
    } else if (const auto* binary = std::get_if<BinaryOp>(&step.op)) {
      const BinaryBlocks blocks = binary_blocks(*binary, plan.from[0], plan.from[1], step.dtype);
      plan.loop = blocks.loop;
      plan.as[0] = plan.as[1] = blocks.type;
      plan.result = blocks.result;
    } else if (std::get<MoveOp>(step.op) == MoveOp::kWhere) {
      plan.loop = where_loop(itemsize(step.dtype));
    } else {
      plan.result = plan.from[0];
    }
    return plan;
  }
};

/// Buffers of a block each, a cache line more than a page apart.
class Buffers {
 public:
  explicit Buffers(int count) : memory_(new unsigned char[(count + kScratch) * kBytes + 64]) {
    const auto address = reinterpret_cast<uintptr_t>(memory_.get());
    first_ = memory_.get() + (64 - address % 64) % 64;
  }
  void* scratch(int i) const { return first_ + i * kBytes; }
  void* operator[](int i) const { return first_ + (kScratch + i) * kBytes; }

 private:
  static constexpr int kScratch = 4;  // of a step: its operands' and its result's conversions
  static constexpr size_t kBytes = kBlock * sizeof(double) + 64;
  std::unique_ptr<unsigned char[]> memory_;
  unsigned char* first_;
};

/// Computes n elements of a step's result.
void run_step(const PlannedStep& step, const std::vector<const void*>& values, void* target,
              int64_t n, const Buffers& buffers) {
  const void* x[3];
  for (int k = 0; k < step.count; ++k) {
    x[k] = values[step.operands[k]];
    if (step.from[k] == step.as[k]) continue;
    convert(x[k], step.from[k], buffers.scratch(k), step.as[k], n);
    x[k] = buffers.scratch(k);
  }
  if (step.loop.index() == 0) return convert(x[0], step.result, target, step.dtype, n);
  void* const y = step.result == step.dtype ? target : buffers.scratch(3);
  if (const auto* unary = std::get_if<UnaryLoop>(&step.loop)) {
    (*unary)(x[0], y, n, step.alpha);
  } else if (const auto* binary = std::get_if<BinaryLoop>(&step.loop)) {
    (*binary)(x[0], x[1], y, n, step.alpha);
  } else {
    std::get<WhereLoop>(step.loop)(static_cast<const uint8_t*>(x[0]), x[1], x[2], y, n);
  }
  if (y != target) convert(y, step.result, target, step.dtype, n);
}

}  // namespace

void fused_cpu_blocks(const FusedProblem& p) {
  std::vector<Tensor> tensors = p.outputs;
  tensors.insert(tensors.end(), p.inputs.begin(), p.inputs.end());
  const Walk walk(tensors);
  const Plan plan(p);
  const size_t outputs = p.outputs.size();
  parallel_for(walk.blocks(), kBlocksPerTask, [&](int64_t first, int64_t last) {
    std::vector<Operand> operands;
    for (size_t k = 0; k < tensors.size(); ++k) {
      operands.emplace_back(walk, static_cast<int>(k), tensors[k]);
    }
    const Buffers buffers(plan.buffers);
    std::vector<const void*> values(p.inputs.size() + p.steps.size());
    for (int64_t i = first; i < last; ++i) {
      const Block block = walk.block(i);
      for (size_t k = 0; k < p.inputs.size(); ++k) values[k] = operands[outputs + k].read(block);
      for (const PlannedStep& step : plan.steps) {
        void* const target =
            step.output >= 0 ? operands[step.output].target(block) : buffers[step.buffer];
        run_step(step, values, target, block.size(), buffers);
        values[step.value] = target;
      }
      for (size_t k = 0; k < outputs; ++k) operands[k].commit(block);
    }
  });
}

}  // namespace weft::kernels
