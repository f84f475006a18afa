#include "kernels/plugins/load.h"

#include <dlfcn.h>
#include <fmt/ranges.h>
#include <link.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <string>
#include <utility>

#include "core/log.h"
#include "kernels/plugins/build.h"

namespace weft::kernels {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string_view> kOps = {
#define WEFT_OP(name) #name,
#include "kernels/ops.inc"
#undef WEFT_OP
};

struct Loaded {
  const Plugin* plugin;
  std::string file;
};

struct Registry {
  std::mutex mutex;
  std::vector<std::pair<std::string_view, const void*>> own;  // by op
  std::vector<Loaded> variants;
};

Registry& registry() {
  static auto& the_registry = *new Registry;
  return the_registry;
}

/// dlopen() waits for ever at a pipe, and reads beyond the end of a file that was cut short.
void check_file(const fs::path& object, const std::string& file) {
  WEFT_CHECK(fs::is_regular_file(object), "{} cannot be loaded: it is no file", file);
  const uint64_t size = fs::file_size(object);
  std::ifstream bytes(object, std::ios::binary);
  ElfW(Ehdr) head = {};
  bytes.read(reinterpret_cast<char*>(&head), sizeof head);
  if (!bytes || std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) return;  // dlopen() says why
  for (int i = 0; i < head.e_phnum; ++i) {
    ElfW(Phdr) part = {};
    bytes.seekg(static_cast<std::streamoff>(head.e_phoff + i * sizeof part));
    bytes.read(reinterpret_cast<char*>(&part), sizeof part);
    WEFT_CHECK(bytes && part.p_offset <= size && part.p_filesz <= size - part.p_offset,
               "{} cannot be loaded: it was cut short, to {} bytes", file, size);
  }
}

const Plugin& open_plugin(const fs::path& object, const fs::path& source) {
  const std::string file = source.string();
  check_file(object, file);
  // For good: lists hold its functions.
  void* const handle = ::dlopen(object.c_str(), RTLD_NOW | RTLD_LOCAL);
  WEFT_CHECK(handle, "{} cannot be loaded: {}", file, ::dlerror());
  const auto* const plugin = static_cast<const Plugin*>(::dlsym(handle, "weft_plugin"));
  WEFT_CHECK(plugin, "{} is no plugin: it has no WEFT_PLUGIN line", file);
  const std::string_view abi = plugin->abi;
  WEFT_CHECK(plugin->format == kPluginFormat && abi == WEFT_PLUGIN_ABI,
             "{} was compiled for {} (format {}), but this is {} (format {}): compile it anew",
             file, abi, plugin->format, WEFT_PLUGIN_ABI, kPluginFormat);
  return *plugin;
}

void load_plugins_of_environment() {
  const char* const text = std::getenv("WEFT_PLUGINS");
  std::string_view rest = text ? text : "";
  while (!rest.empty()) {
    const std::string file(rest.substr(0, rest.find(',')));
    rest.remove_prefix(std::min(rest.size(), file.size() + 1));
    const fs::path path = file;
    const Plugin& plugin = load_plugin(path);
    WEFT_CHECK(plugin.variant,
               "WEFT_PLUGINS: {} brings an op of its own, {}, which no program calls: check it by "
               "weft kernels check --plugin {}",
               file, plugin.op, file);
    log_once(fmt::format("{} of {} stands first in {}", plugin.name, file, plugin.op));
  }
}

}  // namespace

std::atomic<int> plugin_changes = 0;

const Plugin& load_plugin(const fs::path& file) {
  const fs::path object = plugin_object(file);
  const Plugin& plugin = open_plugin(object, file);
  if (!plugin.variant) return plugin;
  WEFT_CHECK(std::ranges::count(kOps, plugin.op) > 0,
             "{} adds a variant to an unknown op \"{}\": expected one of {}", file.string(),
             plugin.op, fmt::join(kOps, ", "));
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  for (const Loaded& other : r.variants) {
    WEFT_CHECK(other.file == file || std::string_view(other.plugin->name) != plugin.name,
               "{} and {} both define {}", other.file, file.string(), plugin.name);
  }
  std::erase_if(r.variants, [&](const Loaded& other) { return other.file == file; });
  r.variants.push_back({&plugin, file});
  plugin_changes.fetch_add(1, std::memory_order_release);
  return plugin;
}

void add_row(std::string_view op, const void* variant) {  // declared in own_row.h
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  r.own.emplace_back(op, variant);
  plugin_changes.fetch_add(1, std::memory_order_release);
}

std::vector<const void*> plugin_rows(std::string_view op, size_t problem_bytes,
                                     const std::vector<std::string_view>& listed) {
  [[maybe_unused]] static const bool is_loaded = (load_plugins_of_environment(), true);
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  std::vector<const void*> rows;
  for (const auto& [its_op, variant] : r.own) {
    if (its_op == op) rows.push_back(variant);
  }
  for (auto loaded = r.variants.begin(); loaded != r.variants.end(); ++loaded) {
    const auto [plugin, file] = *loaded;
    if (plugin->op != op) continue;
    const bool fits = plugin->problem_bytes == problem_bytes;
    if (fits && std::ranges::count(listed, plugin->name) == 0) {
      rows.push_back(plugin->variant);
      continue;
    }
    r.variants.erase(loaded);
    WEFT_CHECK(fits,
               "{} was compiled with another problem of {}, of {} bytes instead of {}: compile it "
               "anew",
               file, op, plugin->problem_bytes, problem_bytes);
    WEFT_FAIL("{} defines {}, which {} has already: choose another name", file, plugin->name, op);
  }
  return rows;
}

}  // namespace weft::kernels
