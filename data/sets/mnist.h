// MNIST and its kin in IDX files, unpacked: LeCun, Cortes, Burges, "The MNIST Database of
// Handwritten Digits". All numbers are big-endian: magic 0x803, count, rows, columns, then pixels;
// magic 0x801, count, then labels.
#pragma once

#include <string>

#include "data/dataset.h"

namespace weft::data {

enum class MnistPart { kTrain, kTest };  // train-images-idx3-ubyte and t10k-images-idx3-ubyte

/// Reads one part into memory, grey repeated in the three channels. The names may have a dot before
/// idx. Throws Error naming the file that is missing, has another magic number or size, holds a
/// label above 9, or does not match its partner.
DatasetPtr load_mnist(const std::string& directory, MnistPart part);

}  // namespace weft::data
