// What a unit's parameters are while they travel: the weights that products alone read come first
// and are narrow, the others behind them are as they are.
//
//   unit        | weights of products, f32        | the others, f32  | padding |
//   on the wire | in bf16        | to 4 bytes     | the others, f32  | padding |
//   ranks       | rank 0 | rank 1 | rank 2 | rank 3                             |
//
// Ranks keep equal numbers of elements, so their shares of the wire differ in bytes.
#pragma once

#include <cstdint>
#include <vector>

namespace weft::dist::fsdp {

struct Wire {
  int64_t elements = 0;               // with the padding: a multiple of the ranks
  int64_t narrowed = 0;               // the first of them
  int64_t item = 4, narrow_item = 2;  // bytes of an element, and of a narrowed one

  /// The byte at which an element begins, or at which all end.
  int64_t begin(int64_t element) const {
    if (element < narrowed) return element * narrow_item;
    const int64_t others = (narrowed * narrow_item + item - 1) / item * item;
    return others + (element - narrowed) * item;
  }
  int64_t bytes() const { return begin(elements); }
  /// Of the part that rank `rank` of `ranks` keeps.
  int64_t bytes(int rank, int ranks) const {
    const int64_t part = elements / ranks;
    return begin((rank + 1) * part) - begin(rank * part);
  }
  std::vector<int64_t> bytes_by_rank(int ranks) const {
    std::vector<int64_t> result;
    for (int r = 0; r < ranks; ++r) result.push_back(bytes(r, ranks));
    return result;
  }
};

}  // namespace weft::dist::fsdp
