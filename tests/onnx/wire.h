// A reader of the protocol-buffer wire format: the few rules that an ONNX file needs.
//
// A message is a list of fields, each a tag (number << 3 | wire type) and a value: a varint (0), 8
// bytes (1), a length and that many bytes (2), or 4 bytes (5); little endian. Unknown fields are
// skipped. https://protobuf.dev/programming-guides/encoding
//
//   for (WireReader r(bytes, "node"); r.next();) {
//     if (r.field() == 4) node.op_type = r.bytes(); else r.skip();
//   }
//
// Nothing is read outside the given bytes; every violation throws Error naming the message.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace weft::onnx {

class WireReader {
 public:
  WireReader(std::string_view bytes, std::string_view message) : rest_(bytes), message_(message) {}

  /// Moves to the next field; false at the end. The value must then be read, or skipped.
  bool next() {
    if (rest_.empty()) return false;
    const uint64_t tag = raw_varint();
    field_ = static_cast<int>(tag >> 3);
    type_ = static_cast<int>(tag & 7);
    WEFT_CHECK(tag >> 3 > 0 && tag >> 3 < (1u << 29), "{}: field number {} is out of range",
               message_, tag >> 3);
    return true;
  }
  int field() const { return field_; }

  int64_t varint() {
    expect(0);
    return static_cast<int64_t>(raw_varint());
  }
  float f32() {
    expect(5);
    return raw<float>();
  }
  /// A string or a message; it points into the bytes that are read.
  std::string_view bytes() {
    expect(2);
    return take(raw_varint());
  }
  /// Adds the values of a repeated field of integers, packed or not.
  void append(std::vector<int64_t>& values) {
    if (type_ == 0) return values.push_back(varint());
    for (WireReader packed(bytes(), message_); !packed.rest_.empty();) {
      values.push_back(static_cast<int64_t>(packed.raw_varint()));
    }
  }
  /// Adds the values of a repeated field of float or double, packed or not.
  template <class T>
  void append(std::vector<T>& values) {
    constexpr int kType = sizeof(T) == 4 ? 5 : 1;
    if (type_ == kType) return values.push_back(raw<T>());
    for (WireReader packed(bytes(), message_); !packed.rest_.empty();) {
      values.push_back(packed.raw<T>());
    }
  }
  void skip() {
    switch (type_) {
      case 0:
        raw_varint();
        break;
      case 1:
        take(8);
        break;
      case 2:
        take(raw_varint());
        break;
      case 5:
        take(4);
        break;
      default:
        WEFT_FAIL("{}: field {} has the unknown wire type {}", message_, field_, type_);
    }
  }

 private:
  void expect(int type) const {
    WEFT_CHECK(type_ == type, "{}: field {} has wire type {}, expected {}", message_, field_, type_,
               type);
  }
  std::string_view take(uint64_t count) {
    WEFT_CHECK(count <= rest_.size(), "{}: field {} needs {} bytes, {} are left", message_, field_,
               count, rest_.size());
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }
  uint64_t raw_varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      const auto byte = static_cast<uint8_t>(take(1)[0]);
      WEFT_CHECK(shift < 63 || byte < 2, "{}: field {} holds a varint of more than 64 bits",
                 message_, field_);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    WEFT_FAIL("{}: field {} holds a varint of more than 64 bits", message_, field_);
  }
  template <class T>
  T raw() {
    static_assert(std::endian::native == std::endian::little);
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }

  std::string_view rest_;
  std::string_view message_;
  int field_ = 0;
  int type_ = 0;
};

}  // namespace weft::onnx
