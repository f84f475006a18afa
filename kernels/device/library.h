// Shared libraries that are opened when they are first needed: a program starts without them, and
// one that lacks them lacks the variants built on them only.
#pragma once

#include <string>
#include <string_view>

namespace weft::kernels {

/// A library of CUDA's, looked for in $CUDA_HOME/lib64, then where the loader looks, then in
/// python3's site-packages/nvidia/*/lib.
class Library {
 public:
  /// name: "libcublasLt.so.13". One that is not found is said once on standard error, with what is
  /// left out for want of it; nothing is said where that is empty.
  explicit Library(std::string name, std::string_view dependents = {});
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  bool is_open() const { return handle_ != nullptr; }
  /// Why it is not open: where it was looked for.
  const std::string& problem() const { return problem_; }
  /// The function of that name; throws Error naming it and the library when there is none.
  template <class Function>
  Function function(const char* name) const {
    return reinterpret_cast<Function>(symbol(name));
  }

 private:
  void* symbol(const char* name) const;

  std::string name_, problem_;
  void* handle_ = nullptr;  // never closed: its threads may outlive main
};

}  // namespace weft::kernels
