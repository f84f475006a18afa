// Places in the source, found from addresses in the program's debugging information.
#pragma once

#include <cstdint>
#include <source_location>
#include <string>

namespace weft::simt {

using Site = std::source_location;

/// A place in the source in 32 bits: of an instruction of this program or of a call into the
/// emulator. 0 is no place.
using Place = uint32_t;

/// The place of the instruction before the return address `pc`.
Place place_of(const void* pc);
Place place_of(const Site& site);
/// "kernels/x/y.cu:12", for inlined code followed by " < " and where it was inlined.
std::string to_string(Place place);
std::string to_string(const Site& site);

}  // namespace weft::simt
