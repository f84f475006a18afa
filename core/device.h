// Where a tensor lives.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/error.h"

namespace weft {

enum class DeviceType : uint8_t { cpu, cuda };

/// A device and its index. CPU indices are distinct addresses in the same memory, so that
/// model-parallel programs can be written and tested without GPUs.
struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;

  friend bool operator==(const Device&, const Device&) = default;
};

std::string_view name(DeviceType type);
/// "cpu", "cpu:1", "cuda:0": the index is left out when it is a CPU's 0.
std::string to_string(Device device);
/// Parses "cpu", "cuda", "cuda:1", and "emulated" or "emulated:1", which are the CUDA devices of a
/// program that has the emulated GPU. Throws Error naming the text.
Device parse_device(std::string_view text);

}  // namespace weft

template <>
struct fmt::formatter<weft::Device> : weft::PlainFormatter {
  auto format(weft::Device device, fmt::format_context& context) const {
    return write(weft::to_string(device), context);
  }
};
