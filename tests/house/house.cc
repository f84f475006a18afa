#include "tests/house/house.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <regex>
#include <sstream>
#include <stdexcept>

namespace weft::house {
namespace {

namespace fs = std::filesystem;

bool is_cpp(const std::string& file) {
  for (const char* ending : {".h", ".cc", ".cu", ".cuh", ".inc"}) {
    if (file.ends_with(ending)) return true;
  }
  return false;
}

bool is_document(const std::string& file) { return file.ends_with(".md"); }

/// Tests look at anything.
bool is_test(const std::string& file) {
  return file.find("_test.") != std::string::npos || file.find("_test_") != std::string::npos ||
         file.find("/testing/") != std::string::npos || floor_of(top_of(file)) < 0;
}

std::string read(const fs::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// What a line says to people: of a document all, of a source its comment.
std::string words_of(const std::string& file, const std::string& line) {
  if (is_document(file)) return line;
  const size_t comment = line.find("//");
  return comment == std::string::npos ? "" : line.substr(comment);
}

void find_mentions(House& house, const std::string& file, const std::string& line, int number) {
  static const std::regex pattern(
      R"((//)?\b((?:[a-z0-9_]+/)+[a-z0-9_.]*(?:\.(?:h|cc|cu|cuh|inc|md|bzl|py)\b|:[a-z0-9_]+)))");
  const std::string words = words_of(file, line);
  for (auto at = std::sregex_iterator(words.begin(), words.end(), pattern);
       at != std::sregex_iterator(); ++at) {
    const std::string text = (*at)[0], path = (*at)[2];
    const bool is_label = path.find(':') != std::string::npos;
    // An address on the web, a file and its line, a system's header.
    if (is_label && !text.starts_with("//")) continue;
    if (floor_of(top_of(path)) < 0 && top_of(path) != "tests" && top_of(path) != "docs" &&
        top_of(path) != "benchmarks" && top_of(path) != "examples" && top_of(path) != "bazel") {
      continue;
    }
    if (at->position() > 0 &&
        (words[at->position() - 1] == '/' || words[at->position() - 1] == '.' ||
         words[at->position() - 1] == '<')) {
      continue;
    }
    house.mentions.push_back({file, number, path});
  }
}

}  // namespace

const std::vector<std::vector<std::string>>& floors() {
  static const std::vector<std::vector<std::string>> all = {
      {"core"}, {"io"},   {"numerics"}, {"kernels"}, {"autograd"}, {"nn", "optim"},
      {"data"}, {"dist"}, {"models"},   {"train"},   {"cli"},      {"python"}};
  return all;
}

std::string top_of(const std::string& file) { return file.substr(0, file.find('/')); }

std::string folder_of(const std::string& file) {
  const size_t slash = file.rfind('/');
  return slash == std::string::npos ? "" : file.substr(0, slash);
}

int floor_of(const std::string& top) {
  for (size_t i = 0; i < floors().size(); ++i) {
    if (std::ranges::count(floors()[i], top) > 0) return static_cast<int>(i);
  }
  return -1;
}

House read_house(const fs::path& root) {
  if (!fs::exists(root / "WORKSPACE")) {
    throw std::runtime_error(root.string() + " holds no WORKSPACE");
  }
  House house;
  for (auto at = fs::recursive_directory_iterator(root); at != fs::recursive_directory_iterator();
       ++at) {
    const std::string name = at->path().filename();
    if (at->is_directory() && name.starts_with(".")) at.disable_recursion_pending();
    if (at.depth() == 0 && (name.starts_with("bazel-") || name == "runs")) {
      at.disable_recursion_pending();
      continue;
    }
    if (!at->is_regular_file()) continue;
    const std::string file = fs::relative(at->path(), root);
    house.files.insert(file);
    if (name == "BUILD" || name.ends_with(".bzl"))
      house.builds[folder_of(file)] += read(at->path());
    if (!is_cpp(file) && !is_document(file)) continue;
    std::istringstream text(read(at->path()));
    int number = 0;
    for (std::string line; std::getline(text, line);) {
      find_mentions(house, file, line, ++number);
      if (is_cpp(file) && line.starts_with("#include \"") && !is_test(file)) {
        house.includes.push_back({file, line.substr(10, line.find('"', 10) - 10)});
      }
    }
  }
  // Generated files belong to their folder, too, but stand in no tree.
  std::erase_if(house.includes, [&](const Include& i) { return !house.files.contains(i.to); });
  return house;
}

fs::path root_of_test() { return fs::canonical("WORKSPACE").parent_path(); }

std::map<std::string, std::map<std::string, Include>> arrows(
    const House& house, std::string (*place)(const std::string&)) {
  std::map<std::string, std::map<std::string, Include>> all;
  for (const Include& i : house.includes) {
    const std::string from = place(i.from), to = place(i.to);
    if (from != to) all[from].emplace(to, i);
  }
  return all;
}

std::vector<std::string> find_circle(
    const std::map<std::string, std::map<std::string, Include>>& arrows) {
  std::vector<std::string> path;
  std::set<std::string> done;
  const std::function<bool(const std::string&)> walk = [&](const std::string& folder) {
    if (const auto first = std::ranges::find(path, folder); first != path.end()) {
      path.erase(path.begin(), first);
      path.push_back(folder);
      return true;
    }
    if (done.contains(folder)) return false;
    path.push_back(folder);
    if (const auto from = arrows.find(folder); from != arrows.end()) {
      for (const auto& [to, witness] : from->second) {
        if (walk(to)) return true;
      }
    }
    path.pop_back();
    done.insert(folder);
    return false;
  };
  for (const auto& [folder, targets] : arrows) {
    if (walk(folder)) return path;
  }
  return {};
}

bool exists(const House& house, const std::string& mention) {
  if (house.files.contains(mention)) return true;
  const size_t colon = mention.find(':');
  const std::string folder =
      colon == std::string::npos ? folder_of(mention) : mention.substr(0, colon);
  const std::string name = colon == std::string::npos ? mention.substr(mention.rfind('/') + 1)
                                                      : mention.substr(colon + 1);
  if (colon != std::string::npos && house.files.contains(folder + "/" + name)) return true;
  const auto build = house.builds.find(folder);
  if (build == house.builds.end()) return false;
  if (build->second.find('"' + name + '"') != std::string::npos) return true;
  // What the macro op() makes of an op's name.
  const std::string op = folder.substr(folder.rfind('/') + 1);
  if (build->second.find("\nop(") == std::string::npos || !name.starts_with(op)) return false;
  static const std::set<std::string> kMade = {
      "",     "_test",       "_device_test", "_asan_test", "_avx2_test", "_baseline_test",
      "_lab", "_bench_test", "_cases",       "_emulated",  "_table"};
  return kMade.contains(name.substr(op.size()));
}

std::string draw(const House& house) {
  constexpr int kWidth = 940, kFloor = 100, kBox = 76, kMargin = 20, kText = 13;
  constexpr double kLeft = 160, kHouse = 612, kGap = 16;
  const auto all = arrows(house, top_of);
  std::map<std::string, std::set<std::string>> rooms;  // those without any too
  for (const std::string& file : house.files) {
    if (!is_cpp(file) || is_test(file)) continue;
    std::set<std::string>& its_rooms = rooms[top_of(file)];
    if (folder_of(file) == top_of(file)) continue;
    const std::string inner = folder_of(file).substr(top_of(file).size() + 1);
    its_rooms.insert(inner.substr(0, inner.find('/')));
  }
  std::vector<std::vector<std::string>> shown;
  for (const auto& floor : floors()) {
    std::vector<std::string> present;
    for (const std::string& top : floor) {
      if (rooms.contains(top)) present.push_back(top);
    }
    if (!present.empty()) shown.push_back(present);
  }
  struct Box {
    double x, y, width;
  };
  std::map<std::string, Box> boxes;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" "
      "font-size=\"{2}\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n"
      "<defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" "
      "markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" "
      "fill=\"#667\"/></marker></defs>\n",
      kWidth, static_cast<int>(shown.size()) * kFloor + kMargin, kText);
  for (size_t i = 0; i < shown.size(); ++i) {
    const double y = kMargin + kFloor * static_cast<double>(shown.size() - 1 - i);
    const auto count = static_cast<double>(shown[i].size());
    const double width = (kHouse - kGap * (count - 1)) / count;
    for (size_t j = 0; j < shown[i].size(); ++j) {
      boxes[shown[i][j]] = {kLeft + (width + kGap) * static_cast<double>(j), y, width};
    }
  }
  // Arrows that pass floors run beside the house, in lanes of their own.
  const auto reaches = [&](const std::string& from, const std::string& to, auto& self) -> bool {
    const auto targets = all.find(from);
    if (targets == all.end()) return false;
    return std::ranges::any_of(targets->second, [&](const auto& target) {
      return target.first == to || self(target.first, to, self);
    });
  };
  std::string lanes;
  int left = 0, right = 0;
  for (const auto& [from, targets] : all) {
    for (const auto& [to, witness] : targets) {
      if (!boxes.contains(from) || !boxes.contains(to)) continue;
      // clang 14 lets no lambda capture a structured binding.
      const bool is_implied = std::ranges::any_of(targets, [&, to = to](const auto& other) {
        return other.first != to && reaches(other.first, to, reaches);
      });
      if (is_implied) continue;
      const Box &a = boxes[from], &b = boxes[to];
      const double gap = b.y - a.y;
      if (gap == 0) {
        lanes += fmt::format(
            "<path d=\"M{} {}H{}\" stroke=\"#667\" fill=\"none\" marker-end=\"url(#tip)\"/>\n",
            a.x < b.x ? a.x + a.width : a.x, a.y + kBox / 2, a.x < b.x ? b.x : b.x + b.width);
      } else if (gap < kFloor + 1) {
        const double x = (std::max(a.x, b.x) + std::min(a.x + a.width, b.x + b.width)) / 2;
        lanes += fmt::format(
            "<path d=\"M{0} {1}V{2}\" stroke=\"#667\" fill=\"none\" marker-end=\"url(#tip)\"/>\n",
            x, a.y + kBox, b.y);
      } else {
        // A box is reached from a side of the house that it stands at.
        const bool stand_left = std::max(a.x, b.x) < kLeft + 1;
        const bool stand_right = std::min(a.x + a.width, b.x + b.width) > kLeft + kHouse - 1;
        const bool is_left = stand_left && (!stand_right || left <= right);
        const int lane = is_left ? left++ : right++;
        const double x = is_left ? 140.0 - 18 * lane : 800.0 + 18 * lane;
        const double edge_a = is_left ? a.x : a.x + a.width, edge_b = is_left ? b.x : b.x + b.width;
        lanes += fmt::format(
            "<path d=\"M{} {}H{}V{}H{}\" stroke=\"#667\" fill=\"none\" "
            "marker-end=\"url(#tip)\"/>\n",
            edge_a, a.y + 16 + 5 * lane, x, b.y + kBox - 12 - 5 * lane, edge_b);
      }
    }
  }
  out += lanes;
  for (const auto& [top, box] : boxes) {
    out += fmt::format(
        "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"6\" fill=\"#eef2f8\" "
        "stroke=\"#345\"/>\n<text x=\"{}\" y=\"{}\" font-weight=\"bold\" "
        "fill=\"#123\">{}/</text>\n",
        box.x, box.y, box.width, kBox, box.x + 10, box.y + 20, top);
    std::vector<std::string> rows = {""};
    for (const std::string& room : rooms[top]) {
      if (static_cast<double>(rows.back().size() + room.size()) > box.width / 6.4)
        rows.push_back("");
      rows.back() += (rows.back().empty() ? "" : "  ") + room;
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      out += fmt::format("<text x=\"{}\" y=\"{}\" fill=\"#345\" font-size=\"12\">{}</text>\n",
                         box.x + 10, box.y + 38 + 15 * static_cast<double>(i), rows[i]);
    }
  }
  return out + "</svg>\n";
}

}  // namespace weft::house
