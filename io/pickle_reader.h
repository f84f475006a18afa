// A pickle as a graph of plain values: what a state dict needs of Python's protocol 2, and no more.
//
// Python's unpickler is a stack machine whose GLOBAL and REDUCE import and call anything. This one
// runs nothing: a global is a name that must stand on the caller's list, and a call of it becomes a
// node that says so. Opcodes, globals and objects outside the list are refused by name and offset.
// The format is documented in Python's pickletools.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft::io {

/// Indices into Pickle::nodes: values may be shared, and lists and dicts may contain themselves.
using PickleIndex = uint32_t;

struct PickleNode {
  enum class Kind : uint8_t {
    kNone,
    kBool,        // integer: 0 or 1
    kInt,         // integer
    kFloat,       // real
    kString,      // text
    kTuple,       // items
    kList,        // items
    kSet,         // empty: protocol 2 has no opcode that fills one
    kDict,        // items: key, value, key, value, ...; an OrderedDict too
    kGlobal,      // text: "module.name"
    kPersistent,  // items: the id, as torch.save refers to storages
    kCall,        // items: the global, the tuple of its arguments
  };
  Kind kind = Kind::kNone;
  uint8_t depth = 0;  // of nesting, as it was when the node was last appended to
  union {
    int64_t integer = 0;
    double real;
  };
  std::string text;
  std::vector<PickleIndex> items;
};

struct Pickle {
  std::vector<PickleNode> nodes;
  PickleIndex root = 0;

  const PickleNode& operator[](PickleIndex index) const { return nodes[index]; }
};

/// The most of anything that a pickle may hold; far beyond a state dict's needs. Within these
/// limits reading takes less than 256 MiB (bounded_memory_test).
struct PickleLimits {
  size_t bytes = size_t{16} << 20;
  size_t nodes = size_t{1} << 20;
  size_t memo = size_t{1} << 20;
  size_t text = size_t{1} << 16;  // bytes of one string
  int depth = 64;                 // of nested containers and of marks
};

/// Reads a pickle of protocol 2. `globals` lists the names it may mention besides
/// collections.OrderedDict, whose instances become dicts. Errors begin with `place`.
Pickle read_pickle(std::span<const std::byte> bytes, std::span<const std::string_view> globals,
                   const std::string& place, const PickleLimits& limits = {});

/// "a tuple", "the string "x"", ...; for messages.
std::string describe(const PickleNode& node);

}  // namespace weft::io
