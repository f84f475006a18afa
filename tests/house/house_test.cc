// The layers, held to what the files say: nothing includes upward, no folders include each other,
// and every path that a comment or a document names exists.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/house/house.h"

namespace weft::house {
namespace {

const House& the_house() {
  static const House house = read_house(root_of_test());
  return house;
}

TEST_CASE("Nothing includes upward") {
  REQUIRE(the_house().includes.size() > 1000);
  for (const Include& i : the_house().includes) {
    INFO(i.from << " includes " << i.to);
    CHECK(floor_of(top_of(i.to)) >= 0);
    CHECK(floor_of(top_of(i.from)) >= floor_of(top_of(i.to)));
  }
}

TEST_CASE("No folders include each other around a circle") {
  for (const auto place : {top_of, folder_of}) {
    std::string circle;
    for (const std::string& folder : find_circle(arrows(the_house(), place))) {
      circle += (circle.empty() ? "" : " -> ") + folder;
    }
    CHECK(circle == "");
  }
}

TEST_CASE("Paths named in comments and documents exist") {
  REQUIRE(the_house().mentions.size() > 100);
  // Files that a reader of the documents is to make.
  static const std::set<std::string> kMadeByReaders = {"kernels/fill/fill_cpu_mine.cc",
                                                       "kernels/gemm/gemm_cuda_columns.cu"};
  for (const Mention& m : the_house().mentions) {
    if (kMadeByReaders.contains(m.text)) continue;
    INFO(m.file << ":" << m.line << " names " << m.text);
    CHECK(exists(the_house(), m.text));
  }
}

TEST_CASE("Every kernel says how many threads it has at most") {
  // So ptxas leaves it no more registers than a multiprocessor has for a block.
  int kernels = 0;
  for (const std::string& file : the_house().files) {
    const bool is_cuda = file.ends_with(".cu") || file.ends_with(".cuh");
    if (!is_cuda || top_of(file) != "kernels" || file.ends_with("_test.cu")) continue;
    std::stringstream stream;
    stream << std::ifstream(root_of_test() / file).rdbuf();
    const std::string text = stream.str();
    const std::string begin = "__global__ ";
    for (size_t at = text.find(begin); at != std::string::npos; at = text.find(begin, at + 1)) {
      ++kernels;
      const std::string declared = text.substr(at, text.find('{', at) - at);
      INFO(file << ": " << declared);
      CHECK(declared.find("__launch_bounds__(") != std::string::npos);
    }
  }
  CHECK(kernels > 60);
}

TEST_CASE("The picture of the house in docs/design.md is of this house") {
  std::stringstream picture;
  picture << std::ifstream(root_of_test() / "docs/pictures/house.svg").rdbuf();
  INFO("bazel run //tests/house:draw >docs/pictures/house.svg");
  CHECK(picture.str() == draw(the_house()));
}

TEST_CASE("A house with faults is told from a sound one") {
  House house;
  house.files = {"core/a.h", "nn/b.h", "nn/inner/c.h"};
  house.includes = {{"nn/b.h", "nn/inner/c.h"}, {"nn/inner/c.h", "core/a.h"}};
  CHECK(find_circle(arrows(house, folder_of)).empty());
  house.includes.push_back({"nn/inner/c.h", "nn/b.h"});
  CHECK(find_circle(arrows(house, folder_of)) == std::vector<std::string>{"nn", "nn/inner", "nn"});
  CHECK(find_circle(arrows(house, top_of)).empty());
  house.builds["core"] = "name = \"made.h\"";
  CHECK(exists(house, "core/a.h"));
  CHECK(exists(house, "core/made.h"));
  CHECK_FALSE(exists(house, "core/absent.h"));
  CHECK_FALSE(exists(house, "nn:made"));
}

}  // namespace
}  // namespace weft::house
