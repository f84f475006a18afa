#include "nn/class_name.h"

#include <catch2/catch.hpp>

#include "nn/layers.h"

namespace weft::nn {
namespace {

struct Foreign : Module, NamesItsClass {
  std::string class_name() const override { return "net.Block"; }
};

TEST_CASE("a module's class is C++'s, unless the module says another") {
  CHECK(class_name(Linear(1, 1)) == "weft::nn::Linear");
  CHECK(class_name(Foreign()) == "net.Block");
}

TEST_CASE("a class is meant by its name with or without what it lies in") {
  for (const char* name : {"weft::nn::Linear", "nn::Linear", "Linear"}) {
    CHECK(is_class_name("weft::nn::Linear", name));
  }
  for (const char* name : {"near", "weft::nn", "::Linear", "Linear2"}) {
    CHECK_FALSE(is_class_name("weft::nn::Linear", name));
  }
  CHECK(is_class_name("net.Block", "Block"));
  CHECK(is_class_name("net.Outer.Block", "Outer.Block"));
  CHECK_FALSE(is_class_name("net.Block", "lock"));
}

}  // namespace
}  // namespace weft::nn
