#include "numerics/tensor_core_vectors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <span>
#include <utility>

#include "core/error.h"

namespace weft::numerics {
namespace {

std::vector<std::string_view> split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find_first_of(separators, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::vector<std::string_view> words(std::string_view text) {
  std::vector<std::string_view> parts = split(text, " \t\r");
  std::erase(parts, "");
  return parts;
}

}  // namespace

bool TensorCoreVectorReader::next(TensorCoreVector& vector) {
  std::string text;
  do {
    if (!std::getline(stream_, text)) {
      WEFT_CHECK(!stream_.bad(), "{}: cannot be read", name_);
      return false;
    }
    ++line_;
  } while (words(text).empty() || text.starts_with('#'));

  const std::vector<std::string_view> fields = split(text, "|");
  WEFT_CHECK(fields.size() == 5,
             "{}, line {}: expected five fields, a | b | c | d as f32 | d as f16, got {}", name_,
             line_, fields.size());
  const auto parse = [&](std::string_view word) {
    uint32_t bits = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), bits, 16);
    WEFT_CHECK(error == std::errc() && end == word.data() + word.size() && word.size() == 8,
               "{}, line {}: \"{}\" is not the eight hexadecimal digits of a float", name_, line_,
               word);
    return std::bit_cast<float>(bits);
  };
  const auto values = [&](std::string_view field) {
    std::vector<float> result;
    for (const std::string_view word : words(field)) result.push_back(parse(word));
    return result;
  };
  const auto value = [&](int field, const char* what) -> std::optional<float> {
    const std::vector<std::string_view> all = words(fields[field]);
    WEFT_CHECK(all.size() == 1, "{}, line {}: expected one value of {}, got {}", name_, line_, what,
               all.size());
    if (field > 2 && all[0] == "-") return std::nullopt;
    return parse(all[0]);
  };
  vector.a = values(fields[0]);
  vector.b = values(fields[1]);
  WEFT_CHECK(!vector.a.empty() && vector.a.size() == vector.b.size(),
             "{}, line {}: expected as many values of a as of b, got {} and {}", name_, line_,
             vector.a.size(), vector.b.size());
  vector.c = *value(2, "c");
  vector.d_f32 = value(3, "d as f32");
  vector.d_f16 = value(4, "d as f16");
  return true;
}

std::string format_vector(const TensorCoreVector& vector) {
  const auto hexadecimal = [](std::span<const float> values) {
    std::vector<uint32_t> bits;
    for (float x : values) bits.push_back(std::bit_cast<uint32_t>(x));
    return fmt::format("{:08x}", fmt::join(bits, " "));
  };
  const auto optional = [&](const std::optional<float>& d) {
    return d ? hexadecimal({&*d, 1}) : "-";
  };
  return fmt::format("{} | {} | {} | {} | {}", hexadecimal(vector.a), hexadecimal(vector.b),
                     hexadecimal({&vector.c, 1}), optional(vector.d_f32), optional(vector.d_f16));
}

float model_result(const TensorCoreModel& model, const TensorCoreVector& vector) {
  const bool fp8 = model.input == DType::f8e4m3 || model.input == DType::f8e5m2;
  const bool wgmma = model.gpu == "h100" && fp8 && model.output == DType::f32;
  return tensor_core_dot(model, vector.a, vector.b, wgmma ? 0 : vector.c);
}

DType parse_operand_format(std::string_view name) {
  constexpr std::pair<std::string_view, DType> kFormats[] = {{"fp16", DType::f16},
                                                             {"bf16", DType::bf16},
                                                             {"tf32", DType::tf32},
                                                             {"e4m3", DType::f8e4m3},
                                                             {"e5m2", DType::f8e5m2}};
  for (const auto& [known, dtype] : kFormats) {
    if (known == name) return dtype;
  }
  WEFT_FAIL("unknown format \"{}\": expected one of fp16 bf16 tf32 e4m3 e5m2", name);
}

}  // namespace weft::numerics
