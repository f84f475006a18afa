#include "cli/report/machine_code.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <regex>
#include <sstream>
#include <utility>

namespace weft::cli {
namespace {

/// Opcodes by how they begin, the first that fits.
constexpr std::pair<std::string_view, Pipe> kPipes[] = {
    {"HGMMA", Pipe::kTensor},     {"QGMMA", Pipe::kTensor},  {"IGMMA", Pipe::kTensor},
    {"HMMA", Pipe::kTensor},      {"IMMA", Pipe::kTensor},   {"DMMA", Pipe::kTensor},
    {"QMMA", Pipe::kTensor},      {"MUFU", Pipe::kSpecial},  {"F2", Pipe::kConvert},
    {"I2", Pipe::kConvert},       {"FRND", Pipe::kConvert},  {"LDGSTS", Pipe::kAsync},
    {"LDGDEPBAR", Pipe::kAsync},  {"DEPBAR", Pipe::kAsync},  {"UTMA", Pipe::kAsync},
    {"UBLKCP", Pipe::kAsync},     {"SYNCS", Pipe::kAsync},   {"FENCE", Pipe::kAsync},
    {"WARPGROUP", Pipe::kAsync},  {"LDG", Pipe::kGlobal},    {"STG", Pipe::kGlobal},
    {"LD.", Pipe::kGlobal},       {"ST.", Pipe::kGlobal},    {"RED", Pipe::kGlobal},
    {"ATOMS", Pipe::kShared},     {"ATOM", Pipe::kGlobal},   {"LDS", Pipe::kShared},
    {"STS", Pipe::kShared},       {"LDL", Pipe::kLocal},     {"STL", Pipe::kLocal},
    {"BAR", Pipe::kControl},      {"BRA", Pipe::kControl},   {"BRX", Pipe::kControl},
    {"BSSY", Pipe::kControl},     {"BSYNC", Pipe::kControl}, {"BREAK", Pipe::kControl},
    {"CALL", Pipe::kControl},     {"RET", Pipe::kControl},   {"EXIT", Pipe::kControl},
    {"WARPSYNC", Pipe::kControl}, {"SHFL", Pipe::kControl},  {"VOTE", Pipe::kControl},
    {"NOP", Pipe::kControl},      {"YIELD", Pipe::kControl}, {"NANOSLEEP", Pipe::kControl},
    {"MEMBAR", Pipe::kControl},   {"ELECT", Pipe::kControl}, {"USETMAXREG", Pipe::kControl},
    {"DADD", Pipe::kDouble},      {"DMUL", Pipe::kDouble},   {"DFMA", Pipe::kDouble},
    {"DSETP", Pipe::kDouble},     {"FADD", Pipe::kFloat},    {"FMUL", Pipe::kFloat},
    {"FFMA", Pipe::kFloat},       {"FMNMX", Pipe::kFloat},   {"FSET", Pipe::kFloat},
    {"FSEL", Pipe::kFloat},       {"FCHK", Pipe::kFloat},    {"HADD", Pipe::kFloat},
    {"HMUL", Pipe::kFloat},       {"HFMA", Pipe::kFloat},    {"HMNMX", Pipe::kFloat},
    {"HSET", Pipe::kFloat}};

/// Bytes that a load or store moves for a thread: .U8 to .128, else 4.
int bytes_of(std::string_view opcode) {
  for (const auto& [suffix, bytes] : {std::pair(".128", 16),
                                      {".64", 8},
                                      {".U16", 2},
                                      {".S16", 2},
                                      {".16", 2},
                                      {".U8", 1},
                                      {".S8", 1}}) {
    if (opcode.find(suffix) != std::string_view::npos) return bytes;
  }
  return 4;
}

struct Instruction {
  std::string opcode;
  std::string target;  // of a branch
};

/// The instructions of a kernel and where its labels stand.
struct Listing {
  std::vector<Instruction> instructions;
  std::map<std::string, int> labels;
  int most_registers = 0;
};

/// "@!P0 BRA `(.L_x_7)" without its predicate.
Instruction parse_instruction(const std::string& text) {
  static const std::regex kParts(R"((?:@!?U?P\w+\s+)?(\S+)(?:.*`\((\.L\w+)\))?.*)");
  std::smatch parts;
  if (!std::regex_match(text, parts, kParts)) return {};
  return {parts[1], parts[2]};
}

std::map<std::string, Listing> read_listings(const std::string& disassembly) {
  static const std::regex kRegisters(R"(USETMAXREG\S* .*0x([0-9a-f]+))");
  std::map<std::string, Listing> listings;
  Listing* listing = nullptr;
  std::istringstream lines(disassembly);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(".text.") && line.ends_with(":")) {
      listing = &listings[line.substr(6, line.size() - 7)];
    } else if (listing && line.starts_with(".L") && line.ends_with(":")) {
      listing->labels[line.substr(0, line.size() - 1)] =
          static_cast<int>(listing->instructions.size());
    } else if (const size_t at = line.find("*/"); listing && at != std::string::npos) {
      const size_t begin = line.find_first_not_of(' ', at + 2), end = line.find(';');
      if (begin == std::string::npos || end == std::string::npos) continue;
      const std::string text = line.substr(begin, end - begin);
      listing->instructions.push_back(parse_instruction(text));
      std::smatch registers;
      if (std::regex_search(text, registers, kRegisters)) {
        listing->most_registers =
            std::max(listing->most_registers, std::stoi(registers[1], nullptr, 16));
      }
    }
  }
  return listings;
}

void count(CodeLoop& loop, std::string_view opcode) {
  ++loop.instructions;
  const Pipe pipe = pipe_of(opcode);
  ++loop.mix[static_cast<size_t>(pipe)];
  loop.exponentials += opcode.starts_with("MUFU.EX2");
  loop.calls += opcode.starts_with("CALL");
  if (pipe != Pipe::kGlobal) return;
  (opcode.starts_with("LD") ? loop.loaded_bytes : loop.stored_bytes) += bytes_of(opcode);
}

std::vector<CodeLoop> find_loops(const Listing& listing) {
  // A loop may have several branches back to its begin: the last ends it.
  std::map<int, int> ends;
  for (int i = 0; i < static_cast<int>(listing.instructions.size()); ++i) {
    const auto label = listing.labels.find(listing.instructions[i].target);
    if (label != listing.labels.end() && label->second < i) {
      ends[label->second] = std::max(ends[label->second], i);
    }
  }
  std::vector<CodeLoop> loops;
  for (const auto& [begin, end] : ends) loops.push_back({.begin = begin, .end = end});
  const auto holds = [](const CodeLoop& outer, int i) {
    return outer.begin <= i && i <= outer.end;
  };
  for (CodeLoop& loop : loops) {
    loop.depth = static_cast<int>(std::ranges::count_if(loops, [&](const CodeLoop& other) {
      return &other != &loop && holds(other, loop.begin) && holds(other, loop.end);
    }));
    for (int i = loop.begin; i <= loop.end; ++i) {
      const bool is_inner = std::ranges::any_of(loops, [&](const CodeLoop& other) {
        return &other != &loop && holds(loop, other.begin) && holds(loop, other.end) &&
               holds(other, i);
      });
      if (!is_inner) count(loop, listing.instructions[i].opcode);
    }
  }
  return loops;
}

/// "gemm_kernel<Bf16, 256>" of what the compiler calls it.
std::string short_name(const std::string& mangled) {
  int status = 0;
  char* const text = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
  std::string name = status == 0 ? text : mangled;
  std::free(text);
  static const std::regex kScopes(R"((\(anonymous namespace\)|\w+)::)");
  name = std::regex_replace(name, kScopes, "");
  if (name.starts_with("void ")) name.erase(0, 5);
  int depth = 0;  // parentheses in template arguments are casts
  for (size_t i = 0; i < name.size(); ++i) {
    depth += (name[i] == '<') - (name[i] == '>');
    if (name[i] == '(' && depth == 0) return name.substr(0, i);
  }
  return name;
}

/// The first number behind the text.
int number_after(const std::string& line, const std::string& text) {
  const size_t at = line.find(text);
  return at == std::string::npos ? 0 : std::atoi(line.c_str() + at + text.size());
}
/// The number in front of the text: "8 bytes spill stores".
int number_before(const std::string& line, const std::string& text) {
  const size_t at = line.find(text);
  if (at == std::string::npos) return 0;
  size_t begin = at;
  while (begin > 0 && std::string_view("0123456789").find(line[begin - 1]) != std::string::npos) {
    --begin;
  }
  return std::atoi(line.c_str() + begin);
}

}  // namespace

Pipe pipe_of(std::string_view opcode) {
  for (const auto& [prefix, pipe] : kPipes) {
    if (opcode.starts_with(prefix)) return pipe;
  }
  return Pipe::kInteger;
}

double KernelCode::occupancy(int warps_of_multiprocessor) const {
  constexpr int kRegisters = 65536, kWarp = 32, kUnit = 8;  // registers are given out by eights
  const int rounded = std::max(kUnit, (registers + kUnit - 1) / kUnit * kUnit);
  const int warps = kRegisters / (rounded * kWarp);
  return std::min(1.0, static_cast<double>(warps) / warps_of_multiprocessor);
}

std::vector<KernelCode> read_machine_code(const std::string& disassembly,
                                          const std::string& ptxas) {
  std::map<std::string, Listing> listings = read_listings(disassembly);
  std::vector<KernelCode> kernels;
  std::string entry, described;
  KernelCode code;
  std::istringstream lines(ptxas);
  for (std::string line; std::getline(lines, line);) {
    if (const size_t at = line.find("Compiling entry function '"); at != std::string::npos) {
      entry = line.substr(at + 26);
      entry = entry.substr(0, entry.find('\''));
      code = {};
    } else if (const size_t of = line.find("Function properties for "); of != std::string::npos) {
      described = line.substr(of + 24);
    } else if (described == entry && line.find("bytes stack frame") != std::string::npos) {
      code.stack_bytes = number_before(line, " bytes stack frame");
      code.spilled_bytes =
          number_before(line, " bytes spill stores") + number_before(line, " bytes spill loads");
    } else if (!entry.empty() && line.find("Used ") != std::string::npos) {
      const Listing& listing = listings[entry];
      code.name = short_name(entry);
      code.registers = number_after(line, "Used ");
      code.shared_bytes = number_before(line, " bytes smem");
      code.instructions = static_cast<int>(listing.instructions.size());
      code.most_registers = listing.most_registers;
      code.loops = find_loops(listing);
      kernels.push_back(std::move(code));
      entry.clear();
    }
  }
  return kernels;
}

}  // namespace weft::cli
