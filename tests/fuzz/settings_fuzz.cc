// libFuzzer target: any JSON is a run's settings, valid or not, or an error; and what was read is
// written and read again as it is.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "train/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft;
  const auto json = nlohmann::json::parse(data, data + size, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return 0;
  try {
    const train::Config config = train::config_from_json(json);
    const nlohmann::json written = train::to_json(config);
    if (written != train::to_json(train::config_from_json(written))) std::abort();
    train::validate(config);
    train::sharing_of(config);
  } catch (const Error&) {
  } catch (const nlohmann::json::exception&) {  // told by who reads the file
  }
  return 0;
}
