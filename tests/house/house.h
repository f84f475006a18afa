// The house as its files have it: folders, the includes between them, and the paths that comments
// and documents name.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace weft::house {

/// Top-level folders from the ground up. What stands on one floor may include each other, in one
/// direction.
const std::vector<std::vector<std::string>>& floors();

struct Include {
  std::string from, to;  // files
};

/// A path or label of the project that a comment or a document names.
struct Mention {
  std::string file;
  int line = 0;
  std::string text;
};

struct House {
  std::set<std::string> files;                // of the sources and documents, from the root
  std::map<std::string, int> lines;           // of C++ and CUDA, by file
  std::vector<Include> includes;              // of files that are no tests
  std::vector<Mention> mentions;              // whether or not they exist
  std::map<std::string, std::string> builds;  // BUILD files' text by folder
};

/// Reads the tree below `root`. Throws std::runtime_error when it holds no WORKSPACE.
House read_house(const std::filesystem::path& root);

/// The tree that a test's runfiles come from.
std::filesystem::path root_of_test();

/// "dist" of "dist/comm/transport.h"; "dist/comm".
std::string top_of(const std::string& file);
std::string folder_of(const std::string& file);
/// 0 at the ground; -1 for what is no floor (tests, benchmarks, examples).
int floor_of(const std::string& top);

/// Arrows between folders: for each the folders that it includes, with one include as a witness.
std::map<std::string, std::map<std::string, Include>> arrows(
    const House& house, std::string (*place)(const std::string&));
/// Folders that include each other around a circle; empty when there is none.
std::vector<std::string> find_circle(
    const std::map<std::string, std::map<std::string, Include>>& arrows);

/// False for a path or label that is neither a file nor made by a rule of its folder's BUILD.
bool exists(const House& house, const std::string& mention);

/// The floors as an SVG picture: folders and their rooms, arrows from who includes to what is
/// included; an arrow that others imply is left out.
std::string draw(const House& house);

}  // namespace weft::house
