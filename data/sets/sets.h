// The sets that can be read, a part of one at a time; data/sets/open.h makes splits of them.
#pragma once

#include <cstdint>
#include <string>

#include "data/dataset.h"

namespace weft::data {

enum class Part { kTrain, kValidation, kTest };

/// The built-in image set: ten kinds of figure, drawn, not read. 12,000, 1,000 and 2,000 images of
/// 32 x 32, every class equally often: disc, ring, square, triangle, cross, star, crescent,
/// stripes, checkerboard, dots. Each is drawn when it is first asked for, in less than a tenth of a
/// millisecond.
///
/// The figure's place, size, turn, proportions and colours, the sloped background, up to two
/// strokes or spots laid under it and the noise are all drawn at random, and a figure is as often
/// darker than its ground as brighter. What tells the classes apart is shape alone: a linear
/// classifier on the pixels, the nearest neighbour and a colour histogram all stay below 40%
/// (data/sets/builtin_test.cc), while a convolution or attention over patches learns it.
DatasetPtr builtin_images(Part part);

/// Draws image `index` of a part; its class is index % 10. The same bits on any number of threads.
Image draw_builtin_image(Part part, int64_t index);

/// CIFAR-10 in its binary form: Krizhevsky, "Learning Multiple Layers of Features from Tiny
/// Images", 2009; cifar-10-binary.tar.gz. A record is one label byte and 32 x 32 bytes each of red,
/// green and blue; a file holds 10,000: kTrain data_batch_1..5.bin, kTest test_batch.bin. They lie
/// in `directory` or its subdirectory cifar-10-batches-bin. Throws Error naming the file that is
/// missing, has another size, or holds a label above 9.
DatasetPtr load_cifar10(const std::string& directory, Part part);
/// True when one of those files is there.
bool has_cifar10_batches(const std::string& directory);

/// MNIST and its kin in IDX files, unpacked: LeCun, Cortes, Burges, "The MNIST Database of
/// Handwritten Digits". All numbers are big-endian: magic 0x803, count, rows, columns, then pixels;
/// magic 0x801, count, then labels. kTrain reads train-images-idx3-ubyte, kTest t10k-..., grey
/// repeated in the three channels. The names may have a dot before idx. Throws Error naming the
/// file that is missing, has another magic number or size, holds a label above 9, or does not match
/// its partner.
DatasetPtr load_mnist(const std::string& directory, Part part);

/// DIRECTORY/<class>/<image>: classes are its subfolders in byte order of their names, a class's
/// examples its .jpg, .jpeg and .png files in byte order; names with a leading dot are passed over.
/// left_out() counts images of other formats, in folders of a class's and beside the classes.
/// Decoded images are kept in memory when all of them, taken to be as large as the first, fit in
/// `cache_bytes`. Throws Error naming the directory when it is missing, holds no class, or a class
/// holds no image.
DatasetPtr open_image_folder(const std::string& directory, int64_t cache_bytes = int64_t{1} << 30);

}  // namespace weft::data
