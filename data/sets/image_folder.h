// Folders of JPEG and PNG images, one folder per class.
#pragma once

#include <string>

#include "data/dataset.h"

namespace weft::data {

/// Opens DIRECTORY/<class>/<image>: classes are its subfolders in byte order of their names, a
/// class's examples its .jpg, .jpeg and .png files in byte order; names with a leading dot are
/// passed over. Decoded images are kept in memory when all of them, taken to be as large as the
/// first, fit in `cache_bytes`. Throws Error naming the directory when it is missing, holds no
/// class, or a class holds no image.
DatasetPtr open_image_folder(const std::string& directory, int64_t cache_bytes = int64_t{1} << 30);

}  // namespace weft::data
