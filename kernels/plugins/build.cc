#include "kernels/plugins/build.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <iterator>
#include <set>
#include <string>
#include <string_view>

#include "core/runtime.h"
#include "io/files.h"
#include "kernels/device/probe.h"
#include "kernels/plugin.h"

extern char** environ;

namespace weft::kernels {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

// bazel/weft.bzl and bazel/cuda.bzl hold the options.
#define WEFT_OPTION(text) text,
const Words kHostOptions = {
#include "kernels/plugins/host_options.inc"
};
#ifdef WEFT_HAS_CUDA
const Words kNvccOptions = {
#include "kernels/plugins/nvcc_options.inc"
};
#else
const Words kEmulatorOptions = {
#include "kernels/plugins/emulator_options.inc"
};
#endif
#undef WEFT_OPTION

/// FNV-1a, over one text after another.
class Hash {
 public:
  Hash& add(std::string_view text) {
    for (const char c : text) add_byte(static_cast<unsigned char>(c));
    add_byte(0x100);  // the end
    return *this;
  }
  Hash& add(const Words& words) {
    for (const std::string& word : words) add(word);
    return *this;
  }
  std::string text() const { return fmt::format("{:016x}", state_); }

 private:
  void add_byte(uint64_t byte) { state_ = (state_ ^ byte) * 0x100000001b3; }

  uint64_t state_ = 0xcbf29ce484222325;
};

fs::path cache_folder() {
  for (const auto& [variable, below] :
       {std::pair{"XDG_CACHE_HOME", "weft/plugins"}, std::pair{"HOME", ".cache/weft/plugins"}}) {
    if (const char* const path = std::getenv(variable); path && *path)
      return fs::path(path) / below;
  }
  return fs::temp_directory_path() / fmt::format("weft-plugins-{}", ::getuid());
}

/// The program or library that holds this code, and the program.
std::vector<fs::path> own_places() {
  std::vector<fs::path> places;
  Dl_info info;
  std::error_code error;
  if (::dladdr(reinterpret_cast<const void*>(&own_places), &info) != 0 && info.dli_fname) {
    places.push_back(fs::canonical(info.dli_fname, error));
  }
  places.push_back(fs::read_symlink("/proc/self/exe", error));
  return places;
}

bool is_installed_at(const fs::path& folder) {
  return fs::exists(folder / "include/weft/kernels/plugin.h");
}

bool is_checkout(const fs::path& folder) {
  return fs::exists(folder / "kernels/plugin.h") && fs::exists(folder / "core/tensor.h");
}

PluginHome checkout_at(const fs::path& root) {
  // <weft/...> by a link to the tree, among the user's own files.
  const fs::path include = cache_folder() / ("include-" + Hash().add(root.string()).text());
  if (!fs::exists(include / "weft")) {
    io::make_directories(include);
    std::error_code error;
    fs::create_directory_symlink(root, include / "weft", error);  // or another process was first
    WEFT_CHECK(fs::exists(include / "weft"), "cannot make {}: {}", (include / "weft").string(),
               error.message());
  }
  return {.include = include, .root = root, .templates = root / "kernels/plugins/templates"};
}

bool is_source(const fs::path& file) {
  return file.extension() == ".cc" || file.extension() == ".cu";
}

std::string compiler() {
  const char* const cxx = std::getenv("CXX");
  return cxx && *cxx ? cxx : "g++";
}

#ifdef WEFT_HAS_CUDA
std::string nvcc() {
  if (const char* const home = std::getenv("CUDA_HOME")) {
    if (const fs::path path = fs::path(home) / "bin/nvcc"; fs::exists(path)) return path;
  }
  const fs::path usual = "/usr/local/cuda/bin/nvcc";
  return fs::exists(usual) ? usual.string() : "nvcc";
}

/// Of this machine's device; without one nothing will run, and the newest is compiled for.
std::string architecture() {
  int capability = 90;
  if (const auto found = find_cuda_devices(); !found.devices.empty()) {
    capability = found.devices[0].compute_capability;
  }
  const std::string number = fmt::format("{}{}", capability, capability >= 90 ? "a" : "");
  return fmt::format("-gencode=arch=compute_{0},code=sm_{0}", number);
}
#endif

/// How a source is compiled, but for the files.
Words compile_command(const fs::path& source, const PluginHome& home) {
  Words words;
  std::string quote = "-iquote";
  if (source.extension() == ".cc") {
    words = {compiler()};
    words.insert(words.end(), kHostOptions.begin(), kHostOptions.end());
    // As Bazel has them for all of the tree.
    words.insert(words.end(), {"-fPIC", "-fno-semantic-interposition", "-DNDEBUG"});
  } else {
#ifdef WEFT_HAS_CUDA
    words = {nvcc()};
    words.insert(words.end(), kNvccOptions.begin(), kNvccOptions.end());
    words.push_back(architecture());
    quote = "-I";
#else
    WEFT_CHECK(runtime::is_emulated(),
               "{}: a CUDA kernel needs a device, real or emulated: add --device emulated",
               source.string());
    words = {compiler()};
    words.insert(words.end(), kEmulatorOptions.begin(), kEmulatorOptions.end());
#endif
  }
  if (runtime::device_count() > 0) words.push_back("-DWEFT_HAS_CUDA");
  words.insert(words.end(), {"-I", home.include});
  if (!home.root.empty()) words.insert(words.end(), {quote, home.root});
  words.insert(words.end(), {quote, source.parent_path()});
  return words;
}

/// Its own functions before the program's: those of the headers are compiled with its options.
Words link_command() { return {compiler(), "-shared", "-fopenmp", "-Wl,-Bsymbolic-functions"}; }

/// Code in a library, as Python's module is one, is linked with: a program may have opened it for
/// itself alone.
Words own_library() {
  const std::vector<fs::path> places = own_places();
  if (places.size() < 2 || places[0] == places[1]) return {};
  return {places[0].string()};
}

struct Finished {
  int status;
  std::string text;  // all that it said
};

/// Runs a program to its end. `log` holds what it says.
Finished run(const Words& words, const fs::path& log) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t child = 0;
  const int error =
      ::posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  WEFT_CHECK(error == 0, "cannot start the compiler {}: {}", words[0], std::strerror(error));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return {status, io::read_text(log)};
}

/// The files of a rule of make, "x.o: a.cc b.h \ c.h", as compilers write it.
std::vector<fs::path> dependencies_in(const fs::path& rule) {
  const std::string text = io::read_text(rule);
  std::vector<fs::path> files;
  std::string word;
  for (size_t i = text.find(": ") + 2; i < text.size(); ++i) {
    const bool is_escaped = text[i] == '\\' && i + 1 < text.size();
    const char c = text[is_escaped ? ++i : i];
    // An escaped space belongs to a name, an escaped end of line is none.
    if (c != '\n' && (is_escaped || c != ' ')) {
      word += c;
    } else if (!word.empty()) {
      files.emplace_back(std::exchange(word, ""));
    }
  }
  if (!word.empty()) files.emplace_back(word);
  return files;
}

thread_local CompilerMessages* messages = nullptr;

/// A plugin's sources on their way to a shared object.
class Build {
 public:
  Build(const fs::path& plugin, const std::vector<fs::path>& sources)
      : plugin_(plugin), cache_(cache_folder()) {
    const PluginHome home = find_plugin_home();
    Hash hash;
    hash.add(WEFT_PLUGIN_ABI).add(plugin.string()).add(link_command()).add(own_library());
    for (const fs::path& source : sources) {
      commands_.push_back(compile_command(source, home));
      hash.add(commands_.back());
      commands_.back().push_back(source);
    }
    name_ = fmt::format("{}-{}", plugin.stem().string(), hash.text());
  }

  /// The shared object, from the cache where nothing has changed.
  fs::path object() const {
    const fs::path list = cache_ / (name_ + ".files");
    if (fs::exists(list)) {
      const fs::path kept = object_of(list);
      if (fs::exists(kept)) return kept;
    }
    io::make_directories(cache_);
    const fs::path scratch = cache_ / fmt::format("{}.{}", name_, ::getpid());
    io::remove_tree(scratch);
    io::make_directories(scratch);
    try {
      compile(scratch);
      const fs::path object = object_of(scratch / "files");
      remove_older();
      io::rename_path(scratch / "plugin.so", object);
      io::rename_path(scratch / "files", list);
      io::remove_tree(scratch);
      return object;
    } catch (...) {
      io::remove_tree(scratch);
      throw;
    }
  }

 private:
  /// What the shared object is called, made of the files that the list names.
  fs::path object_of(const fs::path& list) const {
    Hash hash;
    std::string_view rest;
    const std::string text = io::read_text(list);
    for (rest = text; !rest.empty(); rest.remove_prefix(rest.find('\n') + 1)) {
      const fs::path file = rest.substr(0, rest.find('\n'));
      hash.add(file.string()).add(fs::exists(file) ? io::read_text(file) : "");
    }
    return cache_ / fmt::format("{}-{}.so", name_, hash.text());
  }

  /// Makes plugin.so, and the list of files that it depends on.
  void compile(const fs::path& scratch) const {
    const auto start = fs::file_time_type::clock::now();
    std::vector<std::future<Finished>> running;
    Words link = link_command();
    for (size_t i = 0; i < commands_.size(); ++i) {
      const std::string stem = scratch / std::to_string(i);
      Words words = commands_[i];
      words.insert(words.end(), {"-c", "-o", stem + ".o", "-MMD", "-MF", stem + ".d"});
      link.push_back(stem + ".o");
      running.push_back(std::async(std::launch::async, run, words, stem + ".log"));
    }
    for (auto& compiler : running) finish(compiler.get(), "does not compile");
    std::ranges::copy(own_library(), std::back_inserter(link));
    link.insert(link.end(), {"-o", scratch / "plugin.so"});
    finish(run(link, scratch / "link.log"), "cannot be linked");
    std::set<std::string> files;
    for (size_t i = 0; i < commands_.size(); ++i) {
      for (const fs::path& file : dependencies_in(scratch / fmt::format("{}.d", i))) {
        WEFT_CHECK(fs::last_write_time(file) < start,
                   "{} was changed while {} was compiled, or its time lies in the future",
                   file.string(), plugin_.string());
        files.insert(file);
      }
    }
    io::write_file_atomically(scratch / "files", [&](io::FileWriter& writer) {
      for (const std::string& file : files) writer.write(file + "\n");
    });
  }

  void finish(const Finished& compiler, std::string_view problem) const {
    if (compiler.status == 0) return;
    if (messages) {
      messages->text += compiler.text;
    } else {
      std::fputs(compiler.text.c_str(), stderr);
    }
    WEFT_FAIL("{} {}", plugin_.string(), problem);
  }

  /// Of this plugin, as its files were before.
  void remove_older() const {
    for (const fs::directory_entry& entry : fs::directory_iterator(cache_)) {
      const std::string file = entry.path().filename();
      if (file.starts_with(name_ + "-") && file.ends_with(".so")) io::remove_tree(entry.path());
    }
  }

  fs::path plugin_, cache_;
  std::string name_;
  std::vector<Words> commands_;
};

}  // namespace

CompilerMessages::CompilerMessages() : previous_(messages) { messages = this; }
CompilerMessages::~CompilerMessages() { messages = previous_; }

PluginHome find_plugin_home() {
  std::vector<fs::path> places = own_places();
  const char* const root = std::getenv("WEFT_ROOT");
  if (root && *root) places = {fs::absolute(root) / "."};
  for (const fs::path& place : places) {
    for (fs::path folder = place.parent_path(); folder.has_relative_path();
         folder = folder.parent_path()) {
      if (is_installed_at(folder)) {
        return {
            .include = folder / "include", .root = {}, .templates = folder / "share/weft/plugin"};
      }
      if (is_checkout(folder)) return checkout_at(folder);
    }
  }
  WEFT_FAIL(
      "plugins are compiled against Weft's headers, and there are none near {}: set WEFT_ROOT "
      "to a checkout or an installation",
      places.back().string());
}

fs::path plugin_object(const fs::path& file) {
  WEFT_CHECK(fs::exists(file), "{}: there is no such plugin", file.string());
  const fs::path path = fs::canonical(file);
  if (path.extension() == ".so") return path;
  if (!fs::is_directory(path)) {
    WEFT_CHECK(is_source(path), "{}: expected a .cc, .cu or .so file, or a folder of sources",
               file.string());
    return Build(path, {path}).object();
  }
  std::vector<fs::path> sources;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    if (is_source(entry.path())) sources.push_back(entry.path());
  }
  WEFT_CHECK(!sources.empty(), "{}: the folder has no .cc and no .cu file", file.string());
  std::ranges::sort(sources);
  return Build(path, sources).object();
}

}  // namespace weft::kernels
