#include "io/json_field.h"

#include <catch2/catch.hpp>
#include <limits>

using namespace weft;
using io::field, io::list_field, io::object_field;
using nlohmann::json;

TEST_CASE("fields are what was asked for") {
  const json object = {
      {"n", 3},      {"x", 0.5},         {"big", 1e5},       {"text", "a"},
      {"yes", true}, {"all", {1, 2, 3}}, {"pair", {"a", 1}}, {"more", {{"b", "c"}}}};
  CHECK(field<int>(object, "n") == 3);
  CHECK(field<double>(object, "n") == 3);
  CHECK(field<int64_t>(object, "big") == 100000);
  CHECK(field<std::string>(object, "text") == "a");
  CHECK(field<bool>(object, "yes"));
  CHECK(field<std::vector<int>>(object, "all") == std::vector{1, 2, 3});
  CHECK(field<std::array<double, 3>>(object, "all")[2] == 3);
  CHECK(field<std::pair<std::string, int>>(object, "pair") == std::pair(std::string("a"), 1));
  CHECK(field<std::map<std::string, std::string>>(object, "more").at("b") == "c");
  CHECK(list_field(object, "all").size() == 3);
  CHECK(object_field(object, "more") == json{{"b", "c"}});
}

TEST_CASE("what is missing, or of another type, is named") {
  const json object = {{"n", 3}, {"x", 0.5}, {"text", "a\n"}, {"yes", true}, {"all", {1, "b"}}};
  CHECK_THROWS_WITH(field<int>(object, "m"), "\"m\" is missing");
  CHECK_THROWS_WITH(field(json(3), "m"), "expected an object with \"m\", got 3");
  CHECK_THROWS_WITH(field<int>(object, "x"), "\"x\": expected a whole number, got 0.5");
  CHECK_THROWS_WITH(field<int>(object, "yes"), "\"yes\": expected a whole number, got true");
  CHECK_THROWS_WITH(field<double>(object, "yes"), "\"yes\": expected a number, got true");
  CHECK_THROWS_WITH(field<bool>(object, "n"), "\"n\": expected true or false, got 3");
  CHECK_THROWS_WITH(field<int>(object, "text"), "\"text\": expected a whole number, got \"a\\n\"");
  CHECK_THROWS_WITH(field<std::string>(object, "n"), "\"n\": expected text, got 3");
  CHECK_THROWS_WITH(field<std::vector<int>>(object, "all"),
                    "\"all\": expected a list, got [1,\"b\"]");
  CHECK_THROWS_WITH((field<std::array<int, 3>>(object, "n")), "\"n\": expected a list, got 3");
  CHECK_THROWS_WITH((field<std::pair<int, int>>(object, "all")),
                    "\"all\": expected a pair, got [1,\"b\"]");
  CHECK_THROWS_WITH((field<std::map<std::string, int>>(object, "n")),
                    "\"n\": expected an object, got 3");
  CHECK_THROWS_WITH(object_field(object, "n"), "\"n\": expected an object, got 3");
  CHECK_THROWS_WITH(list_field(object, "text"), Catch::Contains("\"text\": expected a list"));
  const json large = {{"n", std::numeric_limits<uint64_t>::max()}, {"m", -1}, {"x", 1e300}};
  CHECK_THROWS_WITH(field<int64_t>(large, "n"), Catch::Contains("expected a whole number"));
  CHECK_THROWS_WITH(field<uint64_t>(large, "m"), Catch::Contains("got -1"));
  CHECK_THROWS_WITH(field<int64_t>(large, "x"), Catch::Contains("got 1e+300"));
  const json longer = {{"n", std::vector<int>(1000, 1)}};
  try {
    field<int>(longer, "n");
    FAIL();
  } catch (const Error& error) {
    CHECK(std::string(error.what()).size() < 200);
  }
}
