#include "cli/kernels/kernel_skeleton.h"

#include <fmt/format.h>

#include <cctype>
#include <filesystem>
#include <map>
#include <regex>

#include "cli/command.h"
#include "io/files.h"
#include "kernels/plugins/build.h"

namespace weft::cli {
namespace {

namespace fs = std::filesystem;

/// "cross_entropy" as a type: "CrossEntropy".
std::string camel_case(const std::string& name) {
  std::string text;
  bool starts = true;
  for (const char c : name) {
    if (c != '_') text += starts ? static_cast<char>(std::toupper(c)) : c;
    starts = c == '_';
  }
  return text;
}

/// The problem of an op of Weft's, as its header declares it.
std::string problem_of(const std::string& op, const fs::path& header) {
  std::smatch match;
  const std::string text = io::read_text(header);
  const std::regex declaration(
      fmt::format(R"(WEFT_DECLARE_OP\({0}, (\w+)\)|Op<(\w+)>& {0}_op\(\))", op));
  WEFT_CHECK(std::regex_search(text, match, declaration), "{} declares no op {}", header.string(),
             op);
  return match[1].matched ? match[1] : match[2];
}

/// A template's text with its gaps, @op@ and others, filled in.
std::string filled(std::string text, const std::map<std::string, std::string>& gaps) {
  for (const auto& [gap, value] : gaps) {
    for (size_t at = 0; (at = text.find(gap, at)) != std::string::npos; at += value.size()) {
      text.replace(at, gap.size(), value);
    }
  }
  return text;
}

}  // namespace

int write_kernel_skeleton(std::vector<std::string> words) {
  const bool with_cuda = std::erase(words, "--cuda") > 0;
  check_usage(words.size() == 2 && !words[0].starts_with("-") && !words[1].starts_with("-"),
              "kernels new: expected OP DIR [--cuda]");
  const std::string& op = words[0];
  check_usage(
      std::regex_match(op, std::regex("[a-z][a-z0-9]*(_[a-z0-9]+)*")),
      "kernels new: \"{}\" names no op: expected lower-case letters, digits and underscores", op);
  const kernels::PluginHome home = kernels::find_plugin_home();
  const fs::path header = home.include / "weft/kernels" / op / (op + ".h");
  std::map<std::string, std::string> files;  // by the names of their templates
  std::map<std::string, std::string> gaps = {{"@op@", op}};
  if (fs::exists(header)) {
    const std::string device = with_cuda ? "cuda" : "cpu", ending = with_cuda ? ".cu" : ".cc";
    files = {{"variant" + ending, op + "_" + device + "_mine" + ending}};
    gaps["@Problem@"] = problem_of(op, header);
  } else {
    for (const char* part : {".h", ".inc", ".cc", "_reference.cc", "_cases.h", "_cpu_loop.cc"}) {
      files[std::string("op") + part] = op + part;
    }
    if (with_cuda) files["op_cuda_threads.cu"] = op + "_cuda_threads.cu";
    gaps["@Problem@"] = camel_case(op) + "Problem";
    gaps["@cuda_row@"] = with_cuda
                             ? fmt::format(
                                   "WEFT_CUDA_VARIANT({0}_cuda_threads, DTypeSet{{DType::f32}}, "
                                   "fits_any<{1}>)\n",
                                   op, gaps["@Problem@"])
                             : "";
  }
  const fs::path folder = words[1];
  for (const auto& [source, file] : files) {
    WEFT_CHECK(!fs::exists(folder / file), "kernels new: {} exists", (folder / file).string());
  }
  io::make_directories(folder);
  for (const auto& [source, file] : files) {
    const std::string text = filled(io::read_text(home.templates / (source + ".in")), gaps);
    io::write_file_atomically(folder / file, [&](io::FileWriter& writer) { writer.write(text); });
    fmt::print("{}\n", (folder / file).string());
  }
  if (fs::exists(header)) {
    fmt::print("next: weft kernels check {} --plugin {}\n", op,
               (folder / files.begin()->second).string());
  } else {
    fmt::print("next: weft kernels check --plugin {}\n", folder.string());
  }
  return 0;
}

}  // namespace weft::cli
