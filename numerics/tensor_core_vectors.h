// Dot products of real tensor cores, as text: one a line,
//
//   a... | b... | c | d as f32 | d as f16
//
// every value the eight hexadecimal digits of a float's bits, "-" where absent. The number of
// values in a is K. For d as f16, c was first rounded to f16.
#pragma once

#include <cstdint>
#include <istream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "numerics/tensor_core.h"

namespace weft::numerics {

struct TensorCoreVector {
  std::vector<float> a, b;
  float c = 0;
  std::optional<float> d_f32, d_f16;

  const std::optional<float>& d(DType output) const { return output == DType::f16 ? d_f16 : d_f32; }
};

/// Reads such lines one by one; empty lines and those that start with # are passed over.
class TensorCoreVectorReader {
 public:
  /// `name` is what errors call the stream.
  TensorCoreVectorReader(std::istream& stream, std::string name)
      : stream_(stream), name_(std::move(name)) {}

  /// The next line; false at the end. Throws Error naming the line of what is malformed.
  bool next(TensorCoreVector& vector);
  int64_t line() const { return line_; }
  const std::string& name() const { return name_; }

 private:
  std::istream& stream_;
  std::string name_;
  int64_t line_ = 0;
};

/// The line of a vector, without a newline.
std::string format_vector(const TensorCoreVector& vector);

/// The d that the model gives for a vector. wgmma, the only instruction behind Hopper's f32 results
/// of fp8 operands, was run for the published vectors with scale-d = 0: there c takes no part.
float model_result(const TensorCoreModel& model, const TensorCoreVector& vector);

/// The dtype of fp16 bf16 tf32 e4m3 e5m2; throws Error listing them.
DType parse_operand_format(std::string_view name);

}  // namespace weft::numerics
