#include "kernels/device/library.h"

#include <dlfcn.h>
#include <glob.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "core/error.h"

namespace weft::kernels {
namespace {

/// Files of that name in python3's packages: `pip install nvidia-cublas` and its kin.
std::vector<std::string> in_python_packages(const std::string& name) {
  std::vector<std::string> found;
  for (const char* packages : {"/usr/lib/python3*/*-packages", "/usr/local/lib/python3*/*-packages",
                               "/opt/conda/lib/python3*/*-packages"}) {
    glob_t matches = {};
    const std::string pattern = fmt::format("{}/nvidia/*/lib/{}", packages, name);
    if (glob(pattern.c_str(), 0, nullptr, &matches) == 0) {
      for (size_t i = 0; i < matches.gl_pathc; ++i) found.emplace_back(matches.gl_pathv[i]);
    }
    globfree(&matches);
  }
  return found;
}

}  // namespace

Library::Library(std::string name) : name_(std::move(name)) {
  std::vector<std::string> candidates;
  if (const char* home = std::getenv("CUDA_HOME")) {
    candidates.push_back(fmt::format("{}/lib64/{}", home, name_));
  }
  candidates.push_back(name_);
  for (std::string& path : in_python_packages(name_)) candidates.push_back(std::move(path));
  for (const std::string& candidate : candidates) {
    handle_ = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_) return;
    // A file that is there but cannot be loaded says more than one that is not.
    const bool exists = std::filesystem::exists(candidate);
    if (problem_.empty() || exists) problem_ = dlerror();
  }
}

void* Library::symbol(const char* name) const {
  WEFT_CHECK(handle_, "{} is not available: {}", name_, problem_);
  void* address = dlsym(handle_, name);
  WEFT_CHECK(address, "{} has no function {}: another version is needed", name_, name);
  return address;
}

}  // namespace weft::kernels
