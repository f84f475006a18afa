// For tests that hold a table against autograd/ops.h, which is among their data.
#pragma once

#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

namespace weft {

/// The names of the ops that autograd/ops.h declares, operators left out.
inline std::set<std::string> declared_ops() {
  std::ifstream file("autograd/ops.h");
  REQUIRE(file);
  const std::string header{std::istreambuf_iterator<char>(file), {}};
  const std::regex declaration(R"((?:^|\n)(?:Tensor&?|Tensors|std::pair<Tensor, Tensor>) (\w+)\()");
  std::set<std::string> ops;
  for (std::sregex_iterator i(header.begin(), header.end(), declaration), end; i != end; ++i) {
    const std::string op = (*i)[1];
    if (op.rfind("operator", 0) != 0) ops.insert(op);
  }
  REQUIRE(ops.size() >= 90);
  return ops;
}

}  // namespace weft
