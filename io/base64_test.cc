#include "io/base64.h"

#include <catch2/catch.hpp>

#include "core/error.h"

using namespace weft::io;
using Catch::Matchers::Contains;

TEST_CASE("base64 gives RFC 4648's values, and the bytes again") {
  const std::pair<const char*, const char*> pairs[] = {{"", ""},
                                                       {"f", "Zg=="},
                                                       {"fo", "Zm8="},
                                                       {"foo", "Zm9v"},
                                                       {"foob", "Zm9vYg=="},
                                                       {"fooba", "Zm9vYmE="},
                                                       {"foobar", "Zm9vYmFy"}};
  for (const auto& [bytes, text] : pairs) {
    CHECK(base64(bytes) == text);
    CHECK(from_base64(text) == bytes);
  }
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  CHECK(from_base64(base64(all)) == all);
}

TEST_CASE("What base64 does not write is an error") {
  CHECK_THROWS_WITH(from_base64("Zm9<"), Contains("unexpected character 0x3c"));
  for (const char* text : {"Z", "Zg", "Zg=", "Zh==", "Zg==Zg==", "Zm9v="}) {
    INFO(text);
    CHECK_THROWS_WITH(from_base64(text), Contains("no whole text"));
  }
}
