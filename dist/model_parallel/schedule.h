// The order in which a pipeline's stages take their micro-batches; pipeline.h says what each keeps.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace weft::dist {

enum class Schedule : uint8_t { kGpipe, k1F1B };

/// "gpipe", "1f1b"; the other way round throws Error for an unknown name.
std::string_view name(Schedule schedule);
Schedule parse_schedule(const std::string& name);

}  // namespace weft::dist
