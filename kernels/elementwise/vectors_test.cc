// Loops that the kernels leave to the compiler's vectoriser are vectors in the object code: nothing
// else tells when an option, or a compiled header, has taken the vectoriser away.
#include <catch2/catch.hpp>
#include <map>
#include <regex>
#include <sstream>
#include <string>

#include "tests/shell.h"
#include "tests/skip.h"

namespace weft {
namespace {

/// The object code of a library's functions, as objdump prints it, by demangled name.
std::map<std::string, std::string> functions_of(const std::string& library) {
  const CommandOutcome dump =
      run_command("objdump --disassemble --demangle --no-show-raw-insn " + library);
  REQUIRE(dump.code == 0);
  std::map<std::string, std::string> functions;
  std::string* code = nullptr;
  std::istringstream lines(dump.text);
  for (std::string line; std::getline(lines, line);) {
    if (line.ends_with(">:")) {
      code = &functions[line.substr(line.find('<'))];
    } else if (code) {
      *code += line;
    }
  }
  return functions;
}

TEST_CASE("Elementwise loops on floats are vectors with AVX2 and with AVX-512") {
#ifndef __x86_64__
  WEFT_SKIP("the instructions looked for are x86-64's");
#endif
  if (run_command("command -v objdump").code != 0) WEFT_SKIP("objdump is not installed");
  const std::regex loop("N_(AVX[23])::ElementLoops<.*>::numbers<.*, (float|double|weft::bf16)>");
  int loops = 0;
  for (const char* library : {"kernels/binary/libbinary.a", "kernels/unary/libunary.a"}) {
    for (const auto& [name, code] : functions_of(library)) {
      if (!std::regex_search(name, loop)) continue;
      ++loops;
      INFO(library << ": " << name);
      CHECK((code.find("%ymm") != std::string::npos || code.find("%zmm") != std::string::npos));
    }
  }
  CHECK(loops > 100);
}

}  // namespace
}  // namespace weft
