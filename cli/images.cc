// `weft images`: what a model is trained on, as a picture to look at or as files.
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cli/command.h"
#include "data/image.h"
#include "data/sets/open.h"
#include "io/files.h"

namespace weft::cli {
namespace {

struct Arguments {
  std::string data = "builtin";
  std::string split = "train";
  int64_t per_class = 8;
  std::string sheet, folder;
};

data::DatasetPtr open_split(const Arguments& a) {
  const data::Splits splits = data::open_data(a.data, 0);
  const data::DatasetPtr chosen = a.split == "train"        ? splits.train
                                  : a.split == "validation" ? splits.validation
                                                            : splits.test;
  WEFT_CHECK(chosen, "{}: has no {} images", a.data, a.split);
  return chosen;
}

/// The indices of the first images of each class.
std::vector<std::vector<int64_t>> first_of_each_class(const data::Dataset& dataset, int64_t most) {
  std::vector<std::vector<int64_t>> chosen(dataset.class_names().size());
  for (int64_t i = 0; i < dataset.size(); ++i) {
    std::vector<int64_t>& list = chosen[dataset.label(i)];
    if (static_cast<int64_t>(list.size()) < most) list.push_back(i);
  }
  return chosen;
}

void write_png(const data::Image& image, const io::Path& path) {
  const std::vector<uint8_t> bytes = data::encode_png(image);
  io::write_file_atomically(path,
                            [&](io::FileWriter& file) { file.write(bytes.data(), bytes.size()); });
}

/// A row per class, on white, every image in a cell of the largest one's size.
data::Image draw_sheet(const data::Dataset& dataset,
                       const std::vector<std::vector<int64_t>>& chosen) {
  constexpr int kGap = 2;
  std::vector<std::vector<data::Image>> rows;
  int height = 1, width = 1;
  size_t columns = 1;
  for (const std::vector<int64_t>& indices : chosen) {
    rows.emplace_back();
    for (const int64_t i : indices) {
      const data::Image& image = rows.back().emplace_back(dataset.example(i).image);
      height = std::max(height, image.height), width = std::max(width, image.width);
    }
    columns = std::max(columns, indices.size());
  }
  data::Image sheet(static_cast<int>(rows.size()) * (height + kGap) + kGap,
                    static_cast<int>(columns) * (width + kGap) + kGap);
  std::ranges::fill(sheet.pixels, uint8_t{255});
  for (size_t row = 0; row < rows.size(); ++row) {
    for (size_t column = 0; column < rows[row].size(); ++column) {
      const data::Image& image = rows[row][column];
      const int top = kGap + static_cast<int>(row) * (height + kGap);
      const int left = kGap + static_cast<int>(column) * (width + kGap);
      for (int y = 0; y < image.height; ++y) {
        std::copy_n(image.at(y, 0), size_t{3} * image.width, sheet.at(top + y, left));
      }
    }
  }
  return sheet;
}

int images(const Arguments& a) {
  check_usage(!a.sheet.empty() || !a.folder.empty(),
              "images: expected --sheet FILE or --folder DIR");
  as_usage([&] { data::check_data_spec(a.data); });
  const data::DatasetPtr dataset = open_split(a);
  const auto chosen = first_of_each_class(*dataset, a.per_class);
  const std::vector<std::string>& names = dataset->class_names();
  if (!a.sheet.empty()) {
    const data::Image sheet = draw_sheet(*dataset, chosen);
    write_png(sheet, a.sheet);
    fmt::print("{}: {} x {} pixels; from the top: {}\n", a.sheet, sheet.width, sheet.height,
               fmt::join(names, ", "));
  }
  if (!a.folder.empty()) {
    int64_t written = 0;
    for (size_t label = 0; label < names.size(); ++label) {
      const io::Path folder = io::Path(a.folder) / names[label];
      io::make_directories(folder);
      for (const int64_t i : chosen[label]) {
        write_png(dataset->example(i).image, folder / fmt::format("{}-{:05}.png", a.split, i));
        ++written;
      }
    }
    fmt::print("{}: {} images in {} class folders\n", a.folder, written, names.size());
  }
  return 0;
}

}  // namespace

void add_images(Command& app, Action& action) {
  const auto [command, a] = add_command<Arguments>(
      app, action, images, "images", "Write a data set's images as one sheet, or as PNG files",
      kFileCommands);
  command.option("--data", a.data,
                 "Images to look at: builtin, cifar10:DIR, mnist:DIR or folder:DIR",
                 {.takes = "DATA"});
  command.option("--split", a.split, "Split of the data: train, validation or test",
                 {.check = one_of({"train", "validation", "test"})});
  command.option("--per-class", a.per_class, "Number of images of each class, the first ones",
                 {.check = in_range(1, 1 << 20)});
  command.option("--sheet", a.sheet,
                 "Write one PNG file with a row of images for each class; this or --folder is "
                 "needed",
                 {.takes = "FILE"});
  command.option("--folder", a.folder,
                 "Write a PNG file for each image, into a folder for each class under this one",
                 {.takes = "DIR"});
}

}  // namespace weft::cli
