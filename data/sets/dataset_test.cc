// CIFAR-10 and MNIST files, image folders, subsets and relabelling.
#include "data/dataset.h"

#include <catch2/catch.hpp>

#include "data/fixtures.h"
#include "data/sets/sets.h"

namespace weft::data {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<uint8_t>;

constexpr int64_t kBatchBytes = 10000 * 3073;

// A batch whose record i has label i % 10 and colour (i, i + 1, i + 2) modulo 251 everywhere, but
// for red 255 in the first column.
Bytes cifar10_batch() {
  Bytes bytes;
  bytes.reserve(kBatchBytes);
  for (int i = 0; i < 10000; ++i) {
    bytes.push_back(static_cast<uint8_t>(i % 10));
    for (int c = 0; c < 3; ++c) {
      bytes.insert(bytes.end(), 1024, static_cast<uint8_t>((i + c) % 251));
    }
    for (int y = 0; y < 32; ++y) bytes[bytes.size() - 3072 + 32 * y] = 255;
  }
  return bytes;
}

TEST_CASE("CIFAR-10's records become images") {
  const TemporaryFolder folder;
  write_file(folder / "test_batch.bin", cifar10_batch());
  const DatasetPtr set = load_cifar10(folder.path(), Part::kTest);
  CHECK(set->size() == 10000);
  CHECK(set->class_names()[9] == "truck");
  CHECK(set->format().height == 32);
  const Example example = set->example(1234);
  CHECK(example.label == 4);
  CHECK(set->label(1234) == 4);
  const int shade = 1234 % 251;
  CHECK(example.image.at(5, 0)[0] == 255);
  CHECK(example.image.at(5, 0)[1] == shade + 1);
  CHECK(example.image.at(31, 31)[0] == shade);
  CHECK(example.image.at(31, 31)[2] == shade + 2);
}

TEST_CASE("CIFAR-10's bad files are named") {
  const TemporaryFolder folder;
  const std::string batch = folder / "cifar-10-batches-bin/test_batch.bin";
  const auto load = [&] { load_cifar10(folder.path(), Part::kTest); };
  CHECK(error_of(load) == batch + ": cannot open: No such file or directory");
  write_file(batch, Bytes(5000));
  CHECK(has_cifar10_batches(folder.path()));
  CHECK(error_of(load) ==
        batch + ": expected 30730000 bytes (10000 CIFAR-10 records of 3073), found 5000");
  Bytes bytes = cifar10_batch();
  bytes[3073 * 77] = 10;
  write_file(batch, bytes);
  CHECK(error_of(load) == batch + ": record 77 has label 10, expected 0 to 9");
}

Bytes idx(std::vector<uint32_t> header, size_t values, uint8_t modulus) {
  Bytes bytes;
  for (const uint32_t word : header) {
    for (int shift = 24; shift >= 0; shift -= 8)
      bytes.push_back(static_cast<uint8_t>(word >> shift));
  }
  for (size_t i = 0; i < values; ++i) bytes.push_back(static_cast<uint8_t>(i % modulus));
  return bytes;
}

TEST_CASE("MNIST's IDX files become grey images") {
  const TemporaryFolder folder;
  write_file(folder / "t10k-images-idx3-ubyte", idx({0x803, 30, 4, 5}, 600, 251));
  write_file(folder / "t10k-labels.idx1-ubyte", idx({0x801, 30}, 30, 10));
  const DatasetPtr set = load_mnist(folder.path(), Part::kTest);
  CHECK(set->size() == 30);
  CHECK(set->format().width == 5);
  const Example example = set->example(7);
  CHECK(example.label == 7);
  const int value = (7 * 20 + 3 * 5 + 2) % 251;
  for (int c = 0; c < 3; ++c) CHECK(example.image.at(3, 2)[c] == value);
}

TEST_CASE("MNIST's bad files are named") {
  const TemporaryFolder folder;
  const std::string images = folder / "train-images-idx3-ubyte";
  const std::string labels = folder / "train-labels-idx1-ubyte";
  const auto load = [&] { load_mnist(folder.path(), Part::kTrain); };
  CHECK(error_of(load) == images + ": cannot open: No such file or directory");
  write_file(images, Bytes(7));
  CHECK(error_of(load) == images + ": expected an IDX header of 16 bytes, found 7");
  write_file(images, idx({0x801, 2, 4, 5}, 40, 10));
  CHECK(error_of(load) == images + ": expected IDX magic number 0x00000803, found 0x00000801");
  write_file(images, idx({0x803, 2, 4, 5}, 39, 10));
  CHECK(error_of(load) == images + ": expected 56 bytes for sizes [2, 4, 5], found 55");
  write_file(images, idx({0x803, 0xffffffff, 0xffffffff, 0xffffffff}, 40, 10));
  CHECK(error_of(load).starts_with(images + ": expected "));
  write_file(images, idx({0x803, 2, 4, 5}, 40, 10));
  write_file(labels, idx({0x801, 3}, 3, 10));
  CHECK(error_of(load) == labels + ": 3 labels for the 2 images of " + images);
  write_file(labels, idx({0x801, 2}, 2, 10));
  CHECK(error_of(load).empty());
  Bytes wrong = idx({0x801, 2}, 2, 10);
  wrong.back() = 12;
  write_file(labels, wrong);
  CHECK(error_of(load) == labels + ": label 1 is 12, expected 0 to 9");
  write_file(images, idx({0x803, 0, 4, 5}, 0, 10));
  write_file(labels, idx({0x801, 0}, 0, 10));
  CHECK(error_of(load) == images + ": holds no pixels, sizes [0, 4, 5]");
}

TEST_CASE("an image folder is sorted, cached or not") {
  const TemporaryFolder folder;
  write_file(folder / "dog/b.PNG", encode_png(formula_image(4, 6)));
  write_file(folder / "dog/a.png", encode_png(formula_image(5, 5)));
  write_file(folder / "cat/z.jpeg", encode_jpeg(formula_image(8, 7)));
  write_file(folder / "cat/notes.txt", {'x'});
  write_file(folder / ".hidden/x.png", encode_png(formula_image(1, 1)));
  write_file(folder / "readme.png", {'x'});
  for (const int64_t cache : {int64_t{0}, int64_t{1} << 20}) {
    const DatasetPtr set = open_image_folder(folder.path(), cache);
    CHECK(set->class_names() == std::vector<std::string>{"cat", "dog"});
    REQUIRE(set->size() == 3);
    CHECK(set->format().height == 8);
    CHECK(set->format().width == 7);
    for (int pass = 0; pass < 2; ++pass) {
      CHECK(set->example(0).label == 0);
      CHECK(set->example(1).label == 1);
      CHECK(set->example(1).image == formula_image(5, 5));
      CHECK(set->example(2).image == formula_image(4, 6));
    }
  }
}

TEST_CASE("images that a folder does not give are counted") {
  const TemporaryFolder folder;
  write_file(folder / "cat/z.jpeg", encode_jpeg(formula_image(8, 7)));
  CHECK(open_image_folder(folder.path())->left_out().empty());
  for (const char* name : {"cat/a.webp", "cat/b.WEBP", "cat/c.bmp", "cat/d.tif", "cat/notes.txt",
                           "cat/deeper/still/e.png", "cat/deeper/f.bmp", "g.jpg"}) {
    write_file(folder / name, {'x'});
  }
  const DatasetPtr set = open_image_folder(folder.path());
  CHECK(set->size() == 1);
  CHECK(subset(set, 0, 1)->left_out() == set->left_out());
  CHECK(set->left_out() ==
        folder.path() +
            ": 7 images are left out (1 .bmp, 1 .tif, 2 .webp, 1 beside the classes' "
            "folders, 2 in folders of a class's folder); 1 are read, the .jpg, .jpeg "
            "and .png files of each class's folder");
}

TEST_CASE("a folder's cache keeps to its budget, whatever the first image's size") {
  const TemporaryFolder folder;
  write_file(folder / "a/0.png", encode_png(formula_image(1, 1)));
  for (int i = 1; i < 6; ++i) {
    write_file(fmt::format("{}/a/{}.png", folder.path(), i), encode_png(formula_image(10, 10)));
  }
  const DatasetPtr set = open_image_folder(folder.path(), 1000);  // three of them, and the first
  for (int i = 0; i < 6; ++i) set->image(i);
  std::filesystem::remove_all(folder.path() + "/a");
  int cached = 0;
  for (int i = 0; i < 6; ++i) {
    try {
      set->image(i);
      ++cached;
    } catch (const Error&) {
    }
  }
  CHECK(cached == 4);
}

TEST_CASE("a folder's mistakes are named") {
  const TemporaryFolder folder;
  const std::string root = folder.path();
  CHECK(error_of([&] { open_image_folder(root + "/none"); }) == root + "/none: no such directory");
  CHECK(error_of([&] { open_image_folder(root); }) ==
        root + ": expected one folder of images per class, found none");
  write_file(folder / "cat/1.jpg", {'n', 'o', 'p', 'e'});
  CHECK(error_of([&] { open_image_folder(root); }) ==
        root + "/cat/1.jpg: not a JPEG or PNG image (it begins with 6e 6f 70 65)");
  fs::create_directory(root + "/dog");
  CHECK(error_of([&] { open_image_folder(root); }) ==
        root + "/dog: class folder without a .jpg, .jpeg or .png file");
}

TEST_CASE("subsets pick, relabelling matches names") {
  const TemporaryFolder folder;
  for (const char* name : {"ant/0.png", "bee/0.png", "bee/1.png"}) {
    write_file(folder / name, encode_png(formula_image(2, 2)));
  }
  const DatasetPtr set = open_image_folder(folder.path());
  const DatasetPtr picked = subset(set, {2, 0});
  CHECK(picked->size() == 2);
  CHECK(picked->label(0) == 1);
  CHECK(picked->example(1).label == 0);
  CHECK(subset(set, 1, 3)->size() == 2);
  CHECK(error_of([&] { subset(set, {3}); }) == "subset: index 3 of 3 examples");

  CHECK(relabel(set, {"ant", "bee"}) == set);
  const DatasetPtr wider = relabel(set, {"bee", "cow", "ant"});
  CHECK(wider->label(0) == 2);
  CHECK(wider->example(2).label == 0);
  CHECK(wider->class_names().size() == 3);
  CHECK(error_of([&] {
          relabel(set, {"ant", "cow"});
        }) == "class 'bee' of the data is not one of 'ant', 'cow'");
}

}  // namespace
}  // namespace weft::data
