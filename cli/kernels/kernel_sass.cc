#include "cli/kernels/kernel_sass.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "cli/command.h"
#include "cli/json_line.h"
#include "cli/run_program.h"
#include "io/files.h"
#include "io/nearest.h"
#include "kernels/plugins/build.h"

namespace weft::cli {
namespace {

using nlohmann::ordered_json;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

#define WEFT_OPTION(text) text,
const Words kNvccOptions = {
#include "kernels/plugins/nvcc_options.inc"
};
#undef WEFT_OPTION

struct Gpu {
  std::string_view name, architecture;
  int warps;  // of a multiprocessor
};
constexpr Gpu kGpus[] = {{"h100", "sm_90a", 64}, {"h200", "sm_90a", 64}, {"a100", "sm_80", 64},
                         {"a10", "sm_86", 48},   {"4090", "sm_89", 48},  {"b200", "sm_100a", 64},
                         {"5090", "sm_120a", 48}};

const Gpu& find_gpu(std::string_view name) {
  Words names;
  for (const Gpu& gpu : kGpus) {
    if (gpu.name == name) return gpu;
    names.emplace_back(gpu.name);
  }
  throw UsageError("kernels sass --gpu {}: expected one of {}{}", name, fmt::join(names, ", "),
                   io::did_you_mean(name, names));
}

std::string require_tool(const std::string& name) {
  const std::string path = find_cuda_tool(name);
  WEFT_CHECK(!path.empty(),
             "kernels sass: no {0}: install the CUDA toolkit, or set WEFT_NVCC and WEFT_NVDISASM "
             "to its programs; nvdisasm is in the Python package nvidia-cuda-nvdisasm, too",
             name);
  return path;
}

/// A folder of this process's that goes with it.
struct Scratch {
  fs::path path = fs::temp_directory_path() / fmt::format("weft-sass-{}", ::getpid());
  Scratch() { io::make_directories(path); }
  ~Scratch() {
    std::error_code error;
    fs::remove_all(path, error);
  }
};

ordered_json to_json(const KernelCode& kernel, const fs::path& source, const Gpu& gpu) {
  ordered_json loops = ordered_json::array();
  for (const CodeLoop& loop : kernel.loops) {
    ordered_json row = {{"begin", loop.begin},
                        {"end", loop.end},
                        {"depth", loop.depth},
                        {"instructions", loop.instructions}};
    for (size_t i = 0; i < kPipeNames.size(); ++i) {
      if (loop.mix[i] > 0) row["mix"][std::string(kPipeNames[i])] = loop.mix[i];
    }
    row["loaded_bytes"] = loop.loaded_bytes;
    row["stored_bytes"] = loop.stored_bytes;
    row["calls"] = loop.calls;
    if (loop.exponentials > 0) {
      row["exponentials"] = loop.exponentials;
      row["instructions_per_exponential"] = loop.per_exponential();
    }
    loops.push_back(row);
  }
  return {{"kernel", kernel.name},
          {"source", source.filename().string()},
          {"gpu", gpu.name},
          {"architecture", gpu.architecture},
          {"instructions", kernel.instructions},
          {"registers", kernel.registers},
          {"most_registers", std::max(kernel.registers, kernel.most_registers)},
          {"shared_bytes", kernel.shared_bytes},
          {"stack_bytes", kernel.stack_bytes},
          {"spilled_bytes", kernel.spilled_bytes},
          {"occupancy", kernel.occupancy(gpu.warps)},
          {"loops", loops}};
}

void print(const KernelCode& kernel, const Gpu& gpu) {
  fmt::print(
      "{}\n  {} instructions, {} registers{}, {} bytes of shared memory, {} spilled; "
      "registers leave {:.0f}% of the warps\n",
      kernel.name, kernel.instructions, kernel.registers,
      kernel.most_registers > kernel.registers
          ? fmt::format(" (up to {} after setmaxnreg)", kernel.most_registers)
          : "",
      kernel.shared_bytes, kernel.spilled_bytes, 100 * kernel.occupancy(gpu.warps));
  for (const CodeLoop& loop : kernel.loops) {
    constexpr int kLeast = 8;  // waiting for a barrier says nothing
    if (loop.instructions < kLeast) continue;
    std::string mix;
    for (size_t i = 0; i < kPipeNames.size(); ++i) {
      if (loop.mix[i] > 0) mix += fmt::format(", {} {}", loop.mix[i], kPipeNames[i]);
    }
    fmt::print("  {:{}}loop at {}: {} instructions{}{}\n", "", 2 * loop.depth, loop.begin,
               loop.instructions, mix,
               loop.exponentials > 0
                   ? fmt::format("; {:.1f} an exponential", loop.per_exponential())
                   : "");
  }
}

/// The op's files for the GPU. Those of Hopper's wgmma are for no other.
std::vector<fs::path> sources_of(const std::string& op, const Gpu& gpu, const fs::path& root) {
  std::vector<fs::path> sources;
  const fs::path folder = root / "kernels" / op;
  check_usage(fs::is_directory(folder), "kernels sass: \"{}\" is no op and no .cu file", op);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(op + "_cuda_") || entry.path().extension() != ".cu") continue;
    if (name.find("_wgmma") != std::string::npos && gpu.architecture != "sm_90a") continue;
    sources.push_back(entry.path());
  }
  std::ranges::sort(sources);
  return sources;
}

}  // namespace

std::string find_cuda_tool(const std::string& name) {
  std::vector<fs::path> places;
  if (const char* const path = std::getenv(name == "nvcc" ? "WEFT_NVCC" : "WEFT_NVDISASM")) {
    places.emplace_back(path);
  }
  if (const char* const home = std::getenv("CUDA_HOME")) {
    places.push_back(fs::path(home) / "bin" / name);
  }
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    places.push_back(fs::path(folder) / name);
  }
  places.push_back("/usr/local/cuda/bin/" + name);
  const auto found = std::ranges::find_if(places, [](const fs::path& p) { return fs::exists(p); });
  return found == places.end() ? "" : found->string();
}

std::vector<KernelCode> compile_kernels(const fs::path& source, std::string_view gpu_name,
                                        const fs::path& root) {
  const Gpu& gpu = find_gpu(gpu_name);
  const Scratch scratch;
  const fs::path cubin = scratch.path / "kernels.cubin";
  Words words = {require_tool("nvcc")};
  words.insert(words.end(), kNvccOptions.begin(), kNvccOptions.end());
  words.insert(words.end(), {"-DWEFT_HAS_CUDA", fmt::format("-arch={}", gpu.architecture), "-cubin",
                             "-I", root, "-o", cubin, source});
  // ptxas speaks on standard error, as nvcc does of errors.
  std::string said, disassembly;
  const auto quoted = [](const std::string& word) { return "'" + word + "'"; };
  std::string command;
  for (const std::string& word : words) command += quoted(word) + " ";
  const int status = run_program({"/bin/sh", "-c", command + "2>&1"},
                                 [&](const std::string& line) { said += line + "\n"; });
  if (status != 0) fmt::print(stderr, "{}", said);
  WEFT_CHECK(status == 0, "{} does not compile for {}", source.string(), gpu.architecture);
  const int read = run_program({require_tool("nvdisasm"), "-c", cubin},
                               [&](const std::string& line) { disassembly += line + "\n"; });
  WEFT_CHECK(read == 0, "nvdisasm cannot read what {} was compiled to", source.string());
  return read_machine_code(disassembly, said);
}

int report_machine_code(const Words& words) {
  Command command("kernels sass", "What the machine code of an op's kernels holds");
  std::string what, gpu_name = "h100", part;
  bool as_json = false;
  command.option("OP", what, "A folder of kernels/, or a .cu file", {.required = true});
  command.option("--gpu", gpu_name, "The GPU to compile for");
  command.option("--kernel", part, "Kernels and files with this text in their names");
  command.flag("--json", as_json, "Print a JSON object for each kernel");
  try {
    if (const auto text = command.parse(words)) {
      fmt::print("{}", *text);
      return 0;
    }
  } catch (const io::ParseError& error) {
    throw UsageError("kernels sass: {}", error.what());
  }
  const Gpu& gpu = find_gpu(gpu_name);
  const fs::path root = kernels::find_plugin_home().root;
  WEFT_CHECK(!root.empty(), "kernels sass: the kernels' sources are in a checkout alone");
  const bool is_file = what.ends_with(".cu");
  const std::vector<fs::path> sources =
      is_file ? std::vector<fs::path>{what} : sources_of(what, gpu, root);
  for (const fs::path& source : sources) {
    const bool named = source.filename().string().find(part) != std::string::npos;
    // A kernel's name does not say its file: all are compiled unless the text is a file's.
    const bool of_another = std::ranges::any_of(sources, [&](const fs::path& other) {
      return other != source && other.stem().string() == part;
    });
    if (of_another && !named) continue;
    for (const KernelCode& kernel : compile_kernels(source, gpu.name, root)) {
      if (!named && kernel.name.find(part) == std::string::npos) continue;
      if (as_json) {
        print_json(to_json(kernel, source, gpu));
      } else {
        print(kernel, gpu);
      }
    }
  }
  return 0;
}

}  // namespace weft::cli
