// Plugins (kernels/plugin.h) at run time.
//
// Whatever WEFT_PLUGINS names, FILE[,FILE...], is loaded when the first op is used.
#pragma once

#include <atomic>
#include <filesystem>
#include <string_view>
#include <vector>

#include "kernels/plugin.h"

namespace weft::kernels {

/// Loads a shared object, or what build.h makes of a source or a folder. The row of a variant then
/// stands above those of its op's list, from the op's next use on; a file that was loaded before is
/// replaced by what it has become. Throws Error that names the file: it is missing, does not
/// compile, is no plugin, was compiled for another Weft, or its op is unknown.
const Plugin& load_plugin(const std::filesystem::path& file);

/// Counts how often rows of plugins came or changed: a list that was made before is out of date.
extern std::atomic<int> plugin_changes;

/// The rows that plugins add to an op, in the order of loading, each a Variant of its problem.
/// `listed` are the names in the op's own list. Throws Error, and lets go of the plugin, when it
/// takes one of those, or was compiled with another problem struct.
std::vector<const void*> plugin_rows(std::string_view op, size_t problem_bytes,
                                     const std::vector<std::string_view>& listed);

}  // namespace weft::kernels
