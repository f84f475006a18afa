// A plugin's source, compiled as this tree's kernels are: a .cc file with the house's options, a
// .cu file against the emulated GPU, or by nvcc in the cuda flavour.
//
// Shared objects are kept in $XDG_CACHE_HOME/weft/plugins or ~/.cache/weft/plugins under what they
// depend on: the contents of the source and of every header of Weft's and the user's own, options,
// compiler and version. The compiler is $CXX, else g++.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace weft::kernels {

/// What Weft brings along for work outside its tree, in a checkout or an installation.
struct PluginHome {
  std::filesystem::path include;  // below it lies weft/
  /// A checkout's root, from which its headers name each other; else empty.
  std::filesystem::path root;
  std::filesystem::path templates;  // what `weft kernels new` writes, with gaps
};

/// Looks from $WEFT_ROOT, where it is set, else from this program's place upward. Throws Error when
/// nothing is found.
PluginHome find_plugin_home();

/// The shared object of a plugin: `file` itself where it is one, else what the source, or the
/// sources of the folder, are compiled to. What the compiler says of an error goes to standard
/// error, or to this thread's CompilerMessages. Throws Error that names the file.
std::filesystem::path plugin_object(const std::filesystem::path& file);

/// Collects what compilers say of errors, for as long as it lives.
class CompilerMessages {
 public:
  CompilerMessages();
  ~CompilerMessages();
  CompilerMessages(const CompilerMessages&) = delete;
  CompilerMessages& operator=(const CompilerMessages&) = delete;

  std::string text;

 private:
  CompilerMessages* const previous_;
};

}  // namespace weft::kernels
