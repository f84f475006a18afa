// --devices of the commands that start ranks: a number, or auto.
#pragma once

#include <string>

#include "core/device.h"
#include "io/command_line.h"

namespace weft::cli {

/// Adds --devices to a command; the text stays empty where it is not given, which means `usual`.
void add_devices_option(io::Command& command, std::string& text, const std::string& help,
                        const std::string& usual = "1");

/// Whether a text, "auto" or "-1", asks for all devices.
bool asks_for_all(const std::string& text);

/// How many devices a text asks for, counted as Fabric does (train/devices.h): of "auto" and -1 all
/// of this kind that the machine has, of the CPU one; of a program that somebody has started as one
/// of several `ranks`, these. 0 for an empty text. Throws UsageError for any other text.
int device_count(const std::string& text, const Device& kind, int ranks = 0);

/// Of ranks on the hosts that another option names, whose devices cannot be counted from here:
/// throws UsageError for "auto" and -1.
void check_counted(const std::string& text, const std::string& hosts_option);

}  // namespace weft::cli
