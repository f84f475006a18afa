// Ways to add a kernel, inside and outside the tree, as README.md and docs/add-a-kernel.md tell
// them: followed to the letter. What goes into the tree the build has put there (BUILD). Files
// outside of it are written, and commands run, in a folder whose ./weft starts what the build made.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/shell.h"

namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

struct Block {
  std::string mark;  // of the comment before it, <!-- MARK -->; empty without one
  std::string text;
};

/// The blocks of code in a document.
std::vector<Block> blocks_of(const std::string& document) {
  std::vector<Block> blocks;
  std::ifstream file(document);
  REQUIRE(file.good());
  std::string mark;
  bool is_inside = false;
  size_t fence = 0;  // how far it is indented, and the block with it
  for (std::string line; std::getline(file, line);) {
    const size_t indent = std::min(line.find_first_not_of(' '), line.size());
    const std::string text = line.substr(indent);
    if (text.starts_with("```")) {
      is_inside = !is_inside;
      fence = indent;
      if (is_inside) blocks.push_back({std::exchange(mark, ""), ""});
    } else if (is_inside) {
      blocks.back().text += line.substr(std::min(indent, fence)) + "\n";
    } else if (text.starts_with("<!-- ") && text.ends_with(" -->")) {
      mark = text.substr(5, text.size() - 9);
    }
  }
  return blocks;
}

/// A folder with ./weft, whose programs lie beside each other.
fs::path scene(const std::string& name) {
  const fs::path folder = fs::path(std::getenv("TEST_TMPDIR")) / name, here = fs::current_path();
  fs::remove_all(folder);
  fs::create_directories(folder / "bin");
  // A copy: the program looks for the others beside itself.
  fs::copy_file(fs::canonical("cli/weft_kernels"), folder / "bin/weft_kernels");
  for (const char* lab :
       {"tests/documents/fill_lab", "tests/documents/gemm_lab", "kernels/softmax/softmax_lab",
        "kernels/testing/plugin_lab", "kernels/testing/roofline"}) {
    fs::create_symlink(here / lab, folder / "bin" / fs::path(lab).filename());
  }
  // Training is cut short.
  std::ofstream((folder / "weft").string())
      << "#!/bin/sh\nexport WEFT_ROOT='" << here.string() << "' XDG_CACHE_HOME='"
      << (folder / "cache").string() << "'\ncase $1 in\nkernels) exec timeout 240 '"
      << (folder / "bin/weft_kernels").string() << "' \"$@\" ;;\ntrain) exec timeout 240 '"
      << (here / "cli/weft").string()
      << "' \"$@\" --epochs 1 --limit-batches 2 --output run ;;\nesac\nexit 3\n";
  fs::permissions(folder / "weft", fs::perms::owner_all);
  return folder;
}

/// Does all that a document says; the text of what its commands printed.
std::string follow(const std::string& document, const fs::path& folder) {
  std::string text;
  for (const Block& block : blocks_of(document)) {
    if (block.mark.starts_with("file: ")) {
      const fs::path file = block.mark.substr(6);
      if (!file.has_parent_path()) std::ofstream((folder / file).string()) << block.text;
    } else if (block.mark == "run") {
      const weft::CommandOutcome outcome =
          weft::run_command("cd '" + folder.string() + "'; set -ex\n" + block.text);
      INFO(outcome.text);
      CHECK(outcome.code == 0);
      text += outcome.text;
    }
  }
  return text;
}

TEST_CASE("README: a variant in the tree, a skeleton outside of it, and training with that") {
  const std::string text = follow("README.md", scene("readme"));
  INFO(text);
  const size_t bench = text.find("+ ./weft kernels bench fill\n");
  REQUIRE(bench != std::string::npos);
  CHECK_THAT(text.substr(0, bench), Contains(" fill_cpu_mine ") && Contains(" 0 failed, "));
  CHECK_THAT(text.substr(bench), Contains(" fill_cpu_mine "));
  CHECK_THAT(text, Contains("softmax_cpu_mine ") && Contains("softmax: 247 checked, 0 failed"));
  CHECK_THAT(text,
             Contains("softmax_cpu_mine of mine/softmax_cpu_mine.cc stands first in softmax") &&
                 Contains("test accuracy"));
}

TEST_CASE("docs/add-a-kernel.md: a plugin, an op of one's own, and a variant in the tree") {
  const std::string text = follow("docs/add-a-kernel.md", scene("document"));
  INFO(text);
  CHECK_THAT(text, Contains("softmax_cuda_mine ") && Contains("softmax: 14 checked, 0 failed"));
  CHECK_THAT(text, Contains("square_cpu_loop ") && Contains("square_cuda_threads ") &&
                       Contains("square: 19 checked, 0 failed"));
  CHECK_THAT(text, Contains("gemm_cuda_columns ") && Contains(" checked, 0 failed"));
}

}  // namespace
