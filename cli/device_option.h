// --device and --threads, the same for every command that computes.
#pragma once

#include <string>

#include "core/device.h"
#include "io/command_line.h"

namespace weft::cli {

void add_device_option(io::Command& command, std::string& text);
/// Adds --threads to a command; 0 remains where it is not given.
void add_threads_option(io::Command& command, int& threads);

/// The device that was asked for; without one the first usable GPU, or else the CPU. Throws
/// UsageError for a text that names no device, Error for a device that cannot be used and why.
Device chosen_device(const std::string& text);

}  // namespace weft::cli
