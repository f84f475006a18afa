// What a program says of the devices that it is to train on.
#pragma once

#include <string>
#include <vector>

#include "core/device.h"

namespace weft::train {

/// How many devices, or which: 4; "auto" and -1, all there are, of the CPU one; {0, 2}, GPUs by
/// their numbers. "auto" under mpirun, srun or torchrun: the ranks that were started.
struct Devices {
  /// A positive number, or -1. Throws Error for anything else.
  Devices(int given);
  /// "auto", "-1", "4", or numbers of devices: "0,2", "3,". Throws Error for anything else.
  Devices(const std::string& text);
  Devices(const char* text) : Devices(std::string(text)) {}
  Devices(std::vector<int> numbers);

  int count = 1;             // 0: all
  std::vector<int> numbers;  // empty: 0, 1, ...

  /// How many they are on a host with devices of this kind. Throws Error for "all" of no GPU.
  int on(Device kind) const;
  /// The device of rank number `local_rank` of a host.
  Device of_rank(Device kind, int local_rank) const;
};

}  // namespace weft::train
