// Tensors in slices over several files, each written by a process of its own.
//
//   DIR/shard-0-of-4-v0.safetensors  slices of tensors, "fc.weight@2,0" for that at offset [2, 0]
//       ...
//       shard-3-of-4-v0.safetensors
//       index.json                   what lies where
//
//   {"crc32": "...", "format": "weft-sharded", "version": 1, "world_size": 4, "strategy": "fsdp",
//    "files": [{"name": "shard-0-of-4-v0.safetensors", "bytes": 4096, "header_crc32": "..."}, ...],
//    "tensors": {"fc.weight": {"dtype": "f32", "shape": [5, 3],
//                "slices": [{"file": 0, "offset": [2, 0], "size": [1, 3], "crc32": "..."}]}},
//    "metadata": {"key": "value"}}
//
// A slice is a box: `size` elements along each dimension from `offset`. A tensor's slices fill it
// without gap or overlap, whoever wrote which. The index is written last and at once: the state is
// there when it is. Every byte of every file has a checksum, in the index or, of the index, in
// itself; a reader verifies those of the slices that it needs something of.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/checked_json.h"
#include "io/safetensors.h"

namespace weft::io {

inline constexpr const char* kShardIndex = "index.json";

struct Slice {
  std::string name;  // of the tensor
  Shape shape;       // of all of it
  Shape offset;
  Tensor values;  // on the CPU
};

/// Writes one file and brings it to the disk. Returns what write_shard_index() is to know of it.
nlohmann::json write_shard(const Path& file, const std::vector<Slice>& slices);

struct ShardedState {
  std::vector<nlohmann::json> shards;  // what write_shard() returned, of all
  std::string strategy;                // that the writers followed, for whoever looks
  Metadata metadata;
};
/// Writes the index into the directory of the files, in the place of one that is there, whose files
/// it then removes. Throws Error, and leaves the older one, for slices that make no whole.
void write_shard_index(const Path& directory, const ShardedState& state);

/// A number for the next state in a directory: no file of a state there, complete or not, has it in
/// its name.
int next_generation(const Path& directory);
/// "shard-0-of-4-v0.safetensors" of generation 0, "shard-0-of-4-v1.safetensors" of the next.
std::string shard_name(int rank, int world_size, int generation);

/// What lies where: index.json, read.
struct ShardIndex {
  struct File {
    std::string name;
    uint64_t bytes = 0;
    std::string header_checksum;  // of all in front of the data
  };
  struct Place {
    size_t file = 0;
    Shape offset, size;
    std::string checksum;
  };
  struct Entry {
    DType dtype = DType::f32;
    Shape shape;
    std::vector<Place> slices;
  };
  std::vector<File> files;
  std::map<std::string, Entry> tensors;
  Metadata metadata;
  int64_t world_size = 0;
  std::string strategy;
};

/// Whether a directory holds such a state.
bool is_sharded_state(const Path& directory);

/// Reads an index, and of the files what is asked for. The checksum of a slice is verified when it
/// is first read of. Files are mapped: what is read takes no memory of its own.
class ShardedReader {
 public:
  /// Throws Error naming the file and what is wrong: an index that is damaged, or whose slices
  /// overlap or leave holes.
  explicit ShardedReader(const Path& directory);
  ~ShardedReader();
  ShardedReader(const ShardedReader&) = delete;
  ShardedReader& operator=(const ShardedReader&) = delete;

  const Path& directory() const { return directory_; }
  const ShardIndex& index() const { return index_; }
  /// Throws Error when there is none.
  const ShardIndex::Entry& entry(const std::string& name) const;

  /// The box of target.shape() at `offset` of a tensor into `target`, a CPU tensor of its dtype,
  /// strided or not. Throws Error naming the file that is missing, damaged or of another state.
  void read(const std::string& name, const Shape& offset, const Tensor& target);
  /// All of a tensor.
  Tensor read(const std::string& name);
  /// Of the slices that were read from.
  int64_t bytes_read() const { return bytes_read_; }

 private:
  class File;

  File& open(size_t number);

  const Path directory_;
  const ShardIndex index_;
  std::vector<std::unique_ptr<File>> files_;  // those that were opened
  int64_t bytes_read_ = 0;
};

}  // namespace weft::io
