#include "train/pretrained/json_settings.h"

#include <filesystem>

#include "io/checked_json.h"

namespace weft::train {

nlohmann::json read_json(const io::Path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return nlohmann::json::object();
  constexpr uintmax_t kLargest = 16 << 20;
  WEFT_CHECK(std::filesystem::file_size(path, error) <= kLargest, "{}: more than {} bytes",
             path.string(), kLargest);
  nlohmann::json parsed = io::parse_foreign_json(io::read_text(path), path);
  WEFT_CHECK(parsed.is_object(), "{}: not a JSON object", path.string());
  return parsed;
}

}  // namespace weft::train
