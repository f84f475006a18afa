// The matrix product of a tensor core, vectorised over columns.
//
// Operands are split once into a significand in (-2, 2), a float, and an exponent. A step then
// needs integers for the largest exponent, one float product per term (exact: at most 22 bits)
// scaled by a power of two and converted to an integer, which truncates it, and a few f64
// operations per step for the sum, whose 33 bits an f64 holds. Rows and columns with a NaN or an
// infinity, and elements that overflow on the way, are left to the scalar definition.
//
// The limiter is integer and float arithmetic: about a dozen operations per vector of products, and
// some sixty per step.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "numerics/tensor_core_gemm.cc"
#include "core/simd/targets_inl.h"
// The order matters: foreach_target re-includes this file once per instruction set.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <hwy/aligned_allocator.h>
#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "core/parallel.h"
#include "numerics/tensor_core.h"
#include "numerics/tensor_core_terms.h"

#ifndef WEFT_NUMERICS_TENSOR_CORE_GEMM_SHARED
#define WEFT_NUMERICS_TENSOR_CORE_GEMM_SHARED
namespace weft::numerics {

constexpr int kPanel = 16;  // columns that are summed together
constexpr int kRows = 2;    // rows that are summed together, for independent chains

// The exponent of zero: below that of any product, and of its sum with any exponent.
constexpr int32_t kNoExponent = -(1 << 20);

/// Significand and exponent of operands, k by k.
struct SplitOperand {
  const float* significand;
  const int32_t* exponent;
};

/// One tile: rows r < kRows of a against a panel of b.
struct TensorCoreTile {
  SplitOperand a;  // [kRows, k]
  SplitOperand b;  // [k, kPanel]
  int64_t k;       // a multiple of the step's terms
};

/// The accumulators of a tile.
struct TileState {
  alignas(HWY_ALIGNMENT) float value[kRows][kPanel];
  /// Not 0 once an element left the finite range.
  alignas(HWY_ALIGNMENT) int32_t overflow[kRows][kPanel];
};

}  // namespace weft::numerics
#endif

HWY_BEFORE_NAMESPACE();
namespace weft::numerics::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using I32 = hn::RebindToSigned<F32>;
using F64 = hn::ScalableTag<double>;
using I64 = hn::RebindToSigned<F64>;

/// 2^x for x in [-1022, 1023].
template <class V>
HWY_INLINE hn::Vec<F64> power_of_two(V x) {
  return hn::BitCast(F64(), hn::ShiftLeft<52>(hn::Add(x, hn::Set(I64(), 1023))));
}

/// The exponent of a finite accumulator; kNoExponent of zero.
HWY_INLINE hn::Vec<I32> accumulator_exponent(hn::Vec<F32> c, int output_exponent) {
  const I32 di;
  const auto field = hn::ShiftRight<23>(hn::BitCast(di, hn::Abs(c)));
  const auto exponent = hn::Max(hn::Sub(field, hn::Set(di, 127)), hn::Set(di, output_exponent));
  const auto is_zero = hn::RebindMask(di, hn::Eq(c, hn::Zero(F32())));
  return hn::IfThenElse(is_zero, hn::Set(di, kNoExponent), exponent);
}

/// floor(log2 |x|) of normal numbers; -1023 of zero.
HWY_INLINE hn::Vec<I64> exponent_of(hn::Vec<F64> x) {
  const auto bits = hn::BitCast(I64(), hn::Abs(x));
  return hn::Sub(hn::ShiftRight<52>(bits), hn::Set(I64(), 1023));
}

/// One step of `terms` products from k on, for the columns of one f32 vector.
HWY_INLINE void fused_step(const TensorCoreTile& tile, const FusedStep& step, int64_t k,
                           size_t column, TileState& state) {
  const F32 df;
  const I32 di;
  const float* const significand = tile.b.significand + k * kPanel + column;
  const int32_t* const exponent = tile.b.exponent + k * kPanel + column;

  hn::Vec<I32> largest[kRows];
  for (int r = 0; r < kRows; ++r) {
    const auto c = hn::Load(df, state.value[r] + column);
    largest[r] =
        hn::Max(accumulator_exponent(c, step.output_exponent), hn::Set(di, step.alignment_floor));
  }
  for (int t = 0; t < step.terms; ++t) {
    const auto e = hn::Load(di, exponent + t * kPanel);
    for (int r = 0; r < kRows; ++r) {
      const auto ea = hn::Set(di, tile.a.exponent[r * tile.k + k + t]);
      largest[r] = hn::Max(largest[r], hn::Add(e, ea));
    }
  }

  // Two sums: sixteen products of almost 4 would pass 2^31.
  hn::Vec<I32> sums[kRows][2], base[kRows];
  for (int r = 0; r < kRows; ++r) {
    sums[r][0] = sums[r][1] = hn::Zero(di);
    base[r] = hn::Sub(hn::Set(di, step.fraction_bits + 127), largest[r]);
  }
  for (int t = 0; t < step.terms; ++t) {
    const auto e = hn::Load(di, exponent + t * kPanel);
    const auto s = hn::Load(df, significand + t * kPanel);
    for (int r = 0; r < kRows; ++r) {
      const int64_t at = r * tile.k + k + t;
      const auto field = hn::Add(hn::Add(e, hn::Set(di, tile.a.exponent[at])), base[r]);
      // A field of 0 is a scale of 0: such a term lies far below the last bit.
      const auto scale = hn::BitCast(df, hn::ShiftLeft<23>(hn::Max(field, hn::Zero(di))));
      const auto product = hn::Mul(s, hn::Set(df, tile.a.significand[at]));
      sums[r][t % 2] = hn::Add(sums[r][t % 2], hn::ConvertTo(di, hn::Mul(product, scale)));
    }
  }

  const F64 dd;
  const I64 dl;
  const hn::Rebind<int32_t, F64> dh;
  const hn::Rebind<float, F64> dhf;
  const auto output_bits = hn::Set(dl, step.output_bits);
  const auto output_exponent = hn::Set(dl, step.output_exponent);
  const auto fraction_bits = hn::Set(dl, step.fraction_bits);
  for (int r = 0; r < kRows; ++r) {
    float* const value = state.value[r] + column;
    HWY_ALIGN int32_t first[kPanel], second[kPanel], top[kPanel];
    hn::Store(sums[r][0], di, first);
    hn::Store(sums[r][1], di, second);
    hn::Store(largest[r], di, top);
    for (size_t i = 0; i < hn::Lanes(df); i += hn::Lanes(dd)) {
      const auto e = hn::PromoteTo(dl, hn::Load(dh, top + i));
      const auto c = hn::PromoteTo(dd, hn::Load(dhf, value + i));
      const auto aligned_c = hn::Trunc(hn::Mul(c, power_of_two(hn::Sub(fraction_bits, e))));
      const auto products = hn::Add(hn::PromoteTo(dd, hn::Load(dh, first + i)),
                                    hn::PromoteTo(dd, hn::Load(dh, second + i)));
      const auto sum = hn::Add(products, aligned_c);
      // The unit of the result's last bit, over that of the sum.
      const auto unit =
          hn::Max(hn::Sub(exponent_of(sum), output_bits),
                  hn::Sub(hn::Add(hn::Sub(output_exponent, output_bits), fraction_bits), e));
      const auto scaled = hn::Mul(sum, power_of_two(hn::Neg(unit)));
      const auto rounded = step.to_nearest ? hn::Round(scaled) : hn::Trunc(scaled);
      const auto result = hn::Mul(rounded, power_of_two(hn::Add(unit, hn::Sub(e, fraction_bits))));
      hn::Store(hn::DemoteTo(dhf, result), dhf, value + i);
    }
    // The largest float counts as overflow, too: Highway's scalar DemoteTo saturates to it.
    const auto limit = hn::Set(df, step.output_bits == 10 ? 0x1p16f : 0x1.fffffep127f);
    const auto is_finite = hn::Lt(hn::Abs(hn::Load(df, value)), limit);
    int32_t* const overflow = state.overflow[r] + column;
    const auto flags = hn::VecFromMask(di, hn::RebindMask(di, hn::Not(is_finite)));
    hn::Store(hn::Or(hn::Load(di, overflow), flags), di, overflow);
  }
}

void run_tile(const TensorCoreTile& tile, const FusedStep& step, int64_t begin, int64_t end,
              TileState& state) {
  for (size_t column = 0; column < kPanel; column += hn::Lanes(F32())) {
    for (int64_t k = begin; k < end; k += step.terms) fused_step(tile, step, k, column, state);
  }
}

}  // namespace
}  // namespace weft::numerics::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::numerics {
namespace {

HWY_EXPORT(run_tile);

constexpr int64_t kRowBlock = 32;
constexpr int64_t kColumnBlock = 8 * kPanel;

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

float element(const TensorCoreOperand& x, int64_t row, int64_t column) {
  const int64_t at = row * x.row_stride + column * x.column_stride;
  return visit_dtype(x.dtype, [&]<class T>(TypeTag<T>) {
    return static_cast<float>(to_double(static_cast<const T*>(x.data)[at]));
  });
}

/// An operand's values split, and what the fast path cannot take.
class Packed {
 public:
  Packed(int64_t size, int64_t lines)
      : significands(hwy::AllocateAligned<float>(std::max<int64_t>(size, 1))),
        exponents(hwy::AllocateAligned<int32_t>(std::max<int64_t>(size, 1))),
        nan(lines),
        special(lines) {}

  void put(int64_t at, float x, int smallest_exponent, int64_t line) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    const int field = static_cast<int>(bits >> 23 & 0xff);
    float significand = 0;
    int32_t exponent = kNoExponent;
    if (field == 255) {
      special[line] = 1;
      if (std::isnan(x)) nan[line] = 1;
    } else if (x != 0) {
      exponent = std::max(field - 127, smallest_exponent);
      significand = field == 0 ? x * 0x1p126f : std::ldexp(x, -exponent);
    }
    significands[at] = significand;
    exponents[at] = exponent;
  }
  SplitOperand from(int64_t at) const { return {significands.get() + at, exponents.get() + at}; }

  hwy::AlignedFreeUniquePtr<float[]> significands;
  hwy::AlignedFreeUniquePtr<int32_t[]> exponents;
  std::vector<uint8_t> nan, special;  // per row of a, column of b
};

/// A tensor core's work on one GEMM.
class Gemm {
 public:
  Gemm(const TensorCoreModel& model, const TensorCoreGemm& problem)
      : model_(model),
        p_(problem),
        // Products are summed from zero in blocks of so many, or in one chain that starts at c.
        block_(model.split_block != 0 ? model.split_block : problem.promotion_interval),
        padded_k_(round_up(problem.k, std::max<int64_t>(model.step.terms, model.split_block))),
        smallest_(smallest_exponent(model.input)),
        panels_((problem.n + kPanel - 1) / kPanel),
        b_(panels_ * padded_k_ * kPanel, panels_ * kPanel) {}

  void run() {
    parallel_for(panels_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t panel = begin; panel < end; ++panel) pack_panel(panel);
    });
    const int64_t row_blocks = (p_.m + kRowBlock - 1) / kRowBlock;
    const int64_t column_blocks = (p_.n + kColumnBlock - 1) / kColumnBlock;
    parallel_for(row_blocks * column_blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        compute(i / column_blocks * kRowBlock, i % column_blocks * kColumnBlock);
      }
    });
  }

 private:
  /// The k that the hardware sums at position i.
  int64_t source_k(int64_t i) const {
    const int split = model_.split_block;
    return split == 0 ? i : i / split * split + split_position(static_cast<int>(i % split), split);
  }
  float a_value(int64_t row, int64_t k) const {
    return to_operand(element(p_.a, row, k), model_.input);
  }
  float b_value(int64_t k, int64_t column) const {
    return to_operand(element(p_.b, k, column), model_.input);
  }
  float c_value(int64_t row, int64_t column) const {
    return p_.c.data ? to_accumulator(element(p_.c, row, column), model_.output) : 0;
  }

  void pack_panel(int64_t panel) {
    for (int64_t i = 0; i < padded_k_; ++i) {
      const int64_t k = source_k(i);
      for (int64_t column = panel * kPanel; column < (panel + 1) * kPanel; ++column) {
        const bool inside = k < p_.k && column < p_.n;
        b_.put((panel * padded_k_ + i) * kPanel + column % kPanel, inside ? b_value(k, column) : 0,
               smallest_, column);
      }
    }
  }

  void compute(int64_t row_begin, int64_t column_begin) const {
    const int64_t rows = std::min(kRowBlock, p_.m - row_begin);
    const int64_t columns = std::min(kColumnBlock, p_.n - column_begin);
    const int64_t padded_rows = round_up(rows, kRows);
    Packed a(padded_rows * padded_k_, padded_rows);
    for (int64_t r = 0; r < padded_rows; ++r) {
      for (int64_t i = 0; i < padded_k_; ++i) {
        const int64_t k = source_k(i);
        a.put(r * padded_k_ + i, r < rows && k < p_.k ? a_value(row_begin + r, k) : 0, smallest_,
              r);
      }
    }
    for (int64_t j = 0; j < columns; j += kPanel) {
      for (int64_t r = 0; r < rows; r += kRows) {
        compute_tile(a, row_begin, r, column_begin + j);
      }
    }
  }

  /// Rows r0 and up of the block that `a` holds, against a panel of b.
  void compute_tile(const Packed& a, int64_t row_begin, int64_t r0, int64_t column_begin) const {
    const TensorCoreTile tile = {a.from(r0 * padded_k_), b_.from(column_begin * padded_k_),
                                 padded_k_};
    const int rows = static_cast<int>(std::min<int64_t>(kRows, p_.m - row_begin - r0));
    const int columns = static_cast<int>(std::min<int64_t>(kPanel, p_.n - column_begin));
    const auto for_each_element = [&](auto&& f) {
      for (int r = 0; r < rows; ++r) {
        for (int j = 0; j < columns; ++j) f(r, j);
      }
    };
    TileState state = {};
    float total[kRows][kPanel] = {};
    for_each_element(
        [&](int r, int j) { total[r][j] = c_value(row_begin + r0 + r, column_begin + j); });
    const int64_t block = block_ == 0 ? padded_k_ : block_;
    for (int64_t begin = 0; begin < padded_k_; begin += block) {
      for_each_element([&](int r, int j) {
        // What is not finite is summed by the scalar definition below.
        state.value[r][j] = block_ == 0 && std::isfinite(total[r][j]) ? total[r][j] : 0;
      });
      HWY_DYNAMIC_DISPATCH(run_tile)
      (tile, model_.step, begin, std::min(padded_k_, begin + block), state);
      for_each_element([&](int r, int j) {
        const float sum = state.value[r][j];
        if (block_ != 0) {
          total[r][j] = add_to_accumulator(total[r][j], sum, model_.output);
        } else if (std::isfinite(total[r][j])) {
          total[r][j] = sum;
        }
      });
    }
    for_each_element([&](int r, int j) {
      const int64_t row = row_begin + r0 + r, column = column_begin + j;
      float result = total[r][j];
      const bool overflow = state.overflow[r][j] != 0 || !std::isfinite(result);
      if (p_.k > 0 && (a.nan[r0 + r] || b_.nan[column])) {
        result = tensor_core_nan(model_.output);
      } else if (p_.k > 0 && (a.special[r0 + r] || b_.special[column] || overflow)) {
        result = scalar(row, column);
      }
      p_.d[row * p_.d_row_stride + column * p_.d_column_stride] = result;
    });
  }

  float scalar(int64_t row, int64_t column) const {
    std::vector<float> a(p_.k), b(p_.k);
    for (int64_t k = 0; k < p_.k; ++k) {
      a[k] = a_value(row, k);
      b[k] = b_value(k, column);
    }
    const float c = c_value(row, column);
    if (p_.promotion_interval == 0) return tensor_core_dot(model_, a, b, c);
    float total = c;
    for (int64_t begin = 0; begin < p_.k; begin += p_.promotion_interval) {
      const size_t n = std::min(p_.promotion_interval, p_.k - begin);
      total = add_to_accumulator(total,
                                 tensor_core_dot(model_, std::span(a).subspan(begin, n),
                                                 std::span(b).subspan(begin, n), 0),
                                 model_.output);
    }
    return total;
  }

  const TensorCoreModel model_;
  const TensorCoreGemm p_;
  const int64_t block_;
  const int64_t padded_k_;
  const int smallest_;
  const int64_t panels_;
  Packed b_;
};

}  // namespace

void tensor_core_gemm(const TensorCoreModel& model, const TensorCoreGemm& gemm) {
  WEFT_CHECK(gemm.m >= 0 && gemm.n >= 0 && gemm.k >= 0,
             "tensor_core_gemm: negative size in {} x {} x {}", gemm.m, gemm.n, gemm.k);
  WEFT_CHECK(
      gemm.promotion_interval == 0 || (gemm.promotion_interval > 0 && model.split_block == 0 &&
                                       gemm.promotion_interval % model.step.terms == 0),
      "tensor_core_gemm: expected promotion after a multiple of {} products, got {}{}",
      model.step.terms, gemm.promotion_interval,
      model.split_block == 0 ? "" : " for a model that adds to c itself");
  for (const TensorCoreOperand* x : {&gemm.a, &gemm.b, &gemm.c}) {
    WEFT_CHECK(is_floating(x->dtype) && x->dtype != DType::f64,
               "tensor_core_gemm: expected operands narrower than f64, got {}", x->dtype);
  }
  if (gemm.m == 0 || gemm.n == 0) return;
  Gemm(model, gemm).run();
}

}  // namespace weft::numerics
#endif  // HWY_ONCE
