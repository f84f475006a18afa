// weft.numerics: number formats, and the arithmetic of each GPU's tensor cores, on whole arrays.
// python/weft/numerics.py takes and returns NumPy's arrays, too.
#include "numerics/format.h"
#include "numerics/tensor_core.h"

#include "autograd/raw.h"
#include "core/philox.h"
#include "core/view.h"
#include "kernels/gemm/matmul_numerics.h"
#include "python/bindings.h"
#include "python/casters.h"
#include "python/scope.h"

namespace weft::python {
namespace {

using numerics::FloatFormat;

numerics::Conversion conversion_of(const std::string& rounding, bool saturate, bool flush) {
  const std::pair<std::string_view, numerics::Rounding> known[] = {
      {"nearest_even", numerics::Rounding::kNearestEven},
      {"toward_zero", numerics::Rounding::kTowardZero},
      {"nearest_away", numerics::Rounding::kNearestAway},
      {"stochastic", numerics::Rounding::kStochastic}};
  for (const auto& [name, value] : known) {
    if (name == rounding) {
      return {.rounding = value,
              .flush_subnormals = flush,
              .overflow = saturate ? Overflow::kSaturate : Overflow::kSpecial};
    }
  }
  WEFT_FAIL("rounding is nearest_even, toward_zero, nearest_away or stochastic, got \"{}\"",
            rounding);
}

/// A method that converts every element, in f64, into one of T, as `convert` does. Stochastic
/// rounding takes 64 random bits for each.
template <class T, class Result>
auto of_each(Result (FloatFormat::*convert)(double, const numerics::Conversion&, uint64_t) const) {
  return [convert](const FloatFormat& f, const Tensor& x, const std::string& rounding,
                   bool saturate, bool flush, uint64_t seed) {
    const auto how = conversion_of(rounding, saturate, flush);
    const bool draws = how.rounding == numerics::Rounding::kStochastic;
    const Tensor from = raw::contiguous(x, DType::f64);
    const Tensor to = Tensor::empty(x.shape(), dtype_of<T>());
    const double* const in = from.data<double>();
    T* const out = to.data<T>();
    for (int64_t i = 0; i < x.numel(); ++i) {
      const uint64_t bits = draws ? Philox(seed, 0, static_cast<uint64_t>(i)).next_u64() : 0;
      out[i] = static_cast<T>((f.*convert)(in[i], how, bits));
    }
    return to;
  };
}

void bind_formats(nb::module_& m) {
  nb::class_<FloatFormat>(m, "Format", "A binary floating-point format.")
      .def(
          "__init__",
          [](FloatFormat* self, const std::string& name) {
            new (self) FloatFormat(numerics::parse_format(name));
          },
          "name"_a, "fp32 tf32 fp16 bf16 e4m3 e5m2, or e<E>m<M>, with fn behind it for NaN alone.")
      .def_prop_ro("name", &FloatFormat::name)
      .def_prop_ro("bits", &FloatFormat::bits)
      .def_prop_ro("exponent_bits", &FloatFormat::exponent_bits)
      .def_prop_ro("mantissa_bits", &FloatFormat::mantissa_bits)
      .def_prop_ro("largest", &FloatFormat::largest)
      .def_prop_ro("smallest_normal", &FloatFormat::smallest_normal)
      .def_prop_ro("smallest_subnormal", &FloatFormat::smallest_subnormal)
      .def_prop_ro("epsilon", &FloatFormat::epsilon)
      .def_prop_ro("unit_roundoff", &FloatFormat::unit_roundoff)
      .def("__repr__", [](const FloatFormat& f) { return fmt::format("Format(\"{}\")", f.name()); })
      .def("_encode", of_each<int64_t>(&FloatFormat::encode), Unlocked())
      .def(
          "_decode",
          [](const FloatFormat& f, const Tensor& codes) {
            const Tensor from = raw::contiguous(codes, DType::i64);
            const Tensor to = Tensor::empty(codes.shape(), DType::f64);
            const uint64_t mask = f.bits() == 64 ? ~uint64_t{0} : (uint64_t{1} << f.bits()) - 1;
            for (int64_t i = 0; i < codes.numel(); ++i) {
              const auto code = static_cast<uint64_t>(from.data<int64_t>()[i]);
              WEFT_CHECK(code <= mask, "{}: a code has {} bits, got {}", f.name(), f.bits(), code);
              to.data<double>()[i] = f.decode(code);
            }
            return to;
          },
          Unlocked())
      .def("_round", of_each<double>(&FloatFormat::round), Unlocked());
  m.def("format_names", [] {
    std::vector<std::string> names;
    for (const FloatFormat& f : numerics::named_formats()) names.push_back(f.name());
    return names;
  });
}

/// A tensor-core operand of f32 values.
numerics::TensorCoreOperand operand_of(const Tensor& x) {
  return {.data = x.raw(),
          .dtype = x.dtype(),
          .row_stride = x.stride(-2),
          .column_stride = x.stride(-1)};
}

Tensor as_operand(const Tensor& x) {
  return is_floating(x.dtype()) && x.dtype() != DType::f64 ? x : raw::contiguous(x, DType::f32);
}

/// a b + c of matrices, or of batches of them.
Tensor tensor_core_matmul(const std::string& gpu, const Tensor& a, const Tensor& b,
                          const MaybeTensor& c, const MaybeDType& input, const MaybeDType& output,
                          int64_t promotion_interval) {
  const auto model = numerics::tensor_core_model(gpu, *input, *output);
  WEFT_CHECK(a.dim() >= 2 && b.dim() >= 2 && a.size(-1) == b.size(-2),
             "gemm: expected [..., M, K] and [..., K, N], got {} and {}", a, b);
  for (const Tensor& x : {a, b})
    WEFT_CHECK(x.device().type == DeviceType::cpu, "gemm: expected tensors on the CPU, got {}", x);
  const auto batch_of = [](const Tensor& x) {
    return Shape(std::span(x.shape().begin(), x.shape().end() - 2));
  };
  const Shape batch = broadcast_shapes(batch_of(a), batch_of(b), "gemm");
  const auto stretched = [&](const Tensor& x) {
    Shape shape = batch;
    shape.push_back(x.size(-2));
    shape.push_back(x.size(-1));
    const Tensor whole = ops::expand(as_operand(detach(x)), shape);
    return ops::reshape(whole, {numel(batch), x.size(-2), x.size(-1)});
  };
  Shape result = batch;
  result.push_back(a.size(-2));
  result.push_back(b.size(-1));
  const Tensor lhs = stretched(a), rhs = stretched(b);
  const Tensor d = Tensor::zeros({numel(batch), a.size(-2), b.size(-1)}, DType::f32);
  Tensor start;
  if (c.tensor.defined()) {
    start =
        ops::reshape(ops::expand(raw::contiguous(detach(c.tensor), DType::f32), result), d.shape());
  }
  for (int64_t i = 0; i < d.size(0); ++i) {
    const Tensor part = view::select(d, 0, i);
    numerics::tensor_core_gemm(model, {.m = a.size(-2),
                                       .n = b.size(-1),
                                       .k = a.size(-1),
                                       .a = operand_of(view::select(lhs, 0, i)),
                                       .b = operand_of(view::select(rhs, 0, i)),
                                       .c = start.defined() ? operand_of(view::select(start, 0, i))
                                                            : numerics::TensorCoreOperand{},
                                       .d = part.data<float>(),
                                       .d_row_stride = part.stride(0),
                                       .d_column_stride = part.stride(1),
                                       .promotion_interval = promotion_interval});
  }
  return ops::reshape(d, result);
}

class MatmulNumerics : kernels::MatmulScope {
 public:
  MatmulNumerics(const std::string& accumulation, bool allow_tf32)
      : MatmulScope(kernels::MatmulSettings{
            .accumulation = kernels::parse_accumulation(accumulation), .allow_tf32 = allow_tf32}) {}
};

}  // namespace

void bind_numerics(nb::module_ m) {
  bind_formats(m);
  m.def(
      "gpus",
      [] {
        std::vector<std::string> names;
        for (std::string_view name : numerics::tensor_core_gpus()) names.emplace_back(name);
        return names;
      },
      "The tensor cores that are modelled, aliases included.");
  m.def(
      "_takes",
      [](const std::string& gpu, const MaybeDType& format) {
        return numerics::tensor_core_takes(gpu, *format);
      },
      "gpu"_a, "format"_a);
  m.def("_gemm", &tensor_core_matmul, "gpu"_a, "a"_a, "b"_a, "c"_a.none(), "format"_a, "output"_a,
        "promotion_interval"_a, Unlocked());
  m.def("accumulations", &kernels::accumulation_names);
  bind_scope<MatmulNumerics, std::string, bool>(m, "_MatmulNumerics");
}

}  // namespace weft::python
