#include "kernels/device/library.h"

#include <dlfcn.h>
#include <glob.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <vector>

#include "core/error.h"
#include "core/log.h"

namespace weft::kernels {
namespace {

namespace fs = std::filesystem;

/// The folders that python3 finds its packages in: only it knows where an environment's, a user's
/// and a distribution's are. None without python3.
const std::vector<std::string>& python_folders() {
  static const std::vector<std::string> folders = [] {
    std::vector<std::string> found;
    const char* const ask = "python3 -c 'import sys; print(*sys.path, sep=\"\\n\")' 2>/dev/null";
    std::FILE* const python = popen(ask, "r");
    if (!python) return found;
    std::string text;
    for (int c; (c = std::fgetc(python)) != EOF;) text += static_cast<char>(c);
    pclose(python);
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (!line.empty()) found.push_back(line);
    }
    return found;
  }();
  return folders;
}

/// Files of that name in python3's packages: `pip install nvidia-cublas` and its kin.
std::vector<std::string> in_python_packages(const std::string& name) {
  std::vector<std::string> found;
  for (const std::string& folder : python_folders()) {
    glob_t matches = {};
    const std::string pattern = fmt::format("{}/nvidia/*/lib/{}", folder, name);
    if (glob(pattern.c_str(), 0, nullptr, &matches) == 0) {
      for (size_t i = 0; i < matches.gl_pathc; ++i) found.emplace_back(matches.gl_pathv[i]);
    }
    globfree(&matches);
  }
  return found;
}

}  // namespace

Library::Library(std::string name, std::string_view dependents) : name_(std::move(name)) {
  const auto open = [this](const std::string& candidate) {
    handle_ = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_) return true;
    // A file that is there but cannot be loaded says more than one that is not.
    const std::string problem = dlerror();
    if (problem_.empty() || fs::exists(candidate)) problem_ = problem;
    return false;
  };
  const char* const home = std::getenv("CUDA_HOME");
  if (home && open(fmt::format("{}/lib64/{}", home, name_))) return;
  if (open(name_)) return;
  for (const std::string& candidate : in_python_packages(name_)) {
    if (open(candidate)) return;
  }
  if (!dependents.empty()) {
    log_once(
        fmt::format("{} is not available, which leaves out {}: {}", name_, dependents, problem_));
  }
}

void* Library::symbol(const char* name) const {
  WEFT_CHECK(handle_, "{} is not available: {}", name_, problem_);
  void* address = dlsym(handle_, name);
  WEFT_CHECK(address, "{} has no function {}: another version is needed", name_, name);
  return address;
}

}  // namespace weft::kernels
