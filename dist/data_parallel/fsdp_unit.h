// The parameters that FullySharded (dist/data_parallel/fsdp.h) unshards together: one after another
// in a flat tensor, padded to a multiple of the F ranks of the shard group.
//
//   parameters   | a              | b     | c                    |   |
//   parts        | rank 0           | rank 1           | rank 2     |
//
// Rank r keeps the elements [r part, (r + 1) part): its slice of a parameter is what the two have
// in common, possibly nothing. Weights that travel narrow (fsdp_wire.h) come first.
#pragma once

#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "dist/data_parallel/fsdp.h"
#include "dist/data_parallel/fsdp_wire.h"

namespace weft::dist::fsdp {

/// Elements [first, first + count) of a parameter.
struct Range {
  int64_t first = 0, count = 0;
};

struct Parameter {
  std::string name;
  Tensor whole;  // the model's; a view of the unit's memory
  Shape shape;
  int64_t numel = 0;
  int64_t offset = 0;  // in the flat tensor
  Tensor slice;        // what this rank keeps of it: a leaf, [kept.count]
  Range kept;
  bool has_local = false;  // a gradient in Unit::local
  bool has_sent = false;   // one, in the pass at hand
};

struct Unit {
  std::string name;
  std::vector<Parameter> parameters;
  DType dtype = DType::f32;  // of the parts
  DType unsharded_dtype = DType::f32;
  DType reduce_dtype = DType::f32;
  Device device = {};       // of the whole
  Device kept_device = {};  // of the parts
  int64_t padded = 0;
  int64_t part = 0;               // padded / ranks of the shard group
  DType wire_dtype = DType::f32;  // of the first wire.narrowed elements, as they travel
  Wire wire;
  Tensor kept;                      // [part]: this rank's
  std::shared_ptr<Storage> memory;  // of the whole
  // Of memory and of kept, when the one was last the other's: see has_changes().
  uint64_t memory_version = 0, kept_version = 0;

  // Of Unsharding: whether the whole is there, or on its way: [padded], or [wire.bytes()] u8. Its
  // block is here instead of in `memory` where no kernel has asked for it yet.
  bool is_resident = false;
  std::unique_ptr<Storage> aside;
  Tensor incoming;
  Work fetch;
  // What this rank sends of it, where it stays on the device, of kept's version.
  Tensor sent;
  uint64_t sent_version = 0;

  // Of Reduction.
  Tensor kept_gradient;        // [part]; what counts of it is what the slices show as theirs
  Tensor local;                // [padded]: collected under no_sync, in reduce_dtype
  int missing = 0;             // trained parameters without gradient so far
  bool is_complete = false;    // this rank has had all of them, in this pass
  bool is_deferred = false;    // summed when a pass is over
  bool is_awaitable = false;   // its sum begins on all ranks, whatever this one does
  bool is_local_sent = false;  // of `local`, which stays until the pass has succeeded
  Tensors arrived;             // [part]: sums of this pass, which kept_gradient does not have yet
  struct OnItsWay {
    Tensor whole, part;
    Work scatter;
  };
  std::vector<OnItsWay> sums;

  int64_t unsharded_bytes() const {
    return padded * static_cast<int64_t>(itemsize(unsharded_dtype));
  }
  bool is_narrowed() const { return wire.narrowed > 0; }
  /// Whether the whole has all digits of the parts.
  bool is_exact() const { return unsharded_dtype == dtype && !is_narrowed(); }
  /// Whether the program has changed whole parameters in place, of which the parts do not know.
  bool has_changes() const {
    return memory != kept.storage() && memory->version() != memory_version;
  }
  void forget_changes() {
    memory_version = memory->version();
    kept_version = kept.version();
  }
  int64_t arriving_bytes() const { return is_narrowed() ? wire.bytes() : unsharded_bytes(); }
  int count_trained() const;
  /// Whether the optimizer would see one; zero_grad() takes them away.
  bool has_slice_gradient() const;
};

/// ZeRO-1 and -2: parameters are never resharded.
inline bool keeps_whole(Sharding sharding) {
  return sharding == Sharding::kZero1 || sharding == Sharding::kZero2;
}

/// The model's parameters by unit: the outermost unit first, as the model names them.
std::vector<Unit> cut_into_units(nn::Module& module, const WrapPolicy& policy);

/// Fills in offsets, dtypes, devices and sizes; `products` are nn::product_weights(). Throws Error
/// for a unit of several dtypes or devices.
void lay_out(Unit& unit, const FsdpOptions& options,
             const std::unordered_set<const void*>& products);

/// What rank `rank` of the shard group keeps of a parameter.
Range kept_by(const Unit& unit, const Parameter& parameter, int rank);
/// The parameter's place in `part`, [unit.part], of the rank that keeps `parameter.kept`.
Tensor slice_of_part(const Unit& unit, const Parameter& parameter, const Tensor& part, int rank);
/// The kept elements of a tensor of the parameter's shape.
Tensor slice_of_whole(const Parameter& parameter, const Tensor& whole);

/// The unsharded parameters, [padded]. It keeps no count of changes: what is unsharded again is no
/// change.
Tensor flat_view(const Unit& unit);
/// What rank `rank` keeps of a narrowed unit as it travels, [wire.bytes(rank, ranks)] u8.
Tensor narrowed_part(const Unit& unit, int rank);
/// The unit that all ranks' narrowed parts make, `arrived`, as unsharded parameters: `whole`,
/// [padded].
void widen(const Unit& unit, const Tensor& arrived, const Tensor& whole);
/// A parameter's place in a flat tensor, [padded], in its shape.
Tensor place_in_flat(const Parameter& parameter, const Tensor& flat);

/// The parameter that an entry of the model's state_dict() stands for; nulls for a buffer.
std::pair<Unit*, Parameter*> find_entry(std::vector<Unit>& units, const Tensor& entry);
/// Throws Error when there is none of that name.
std::pair<Unit*, Parameter*> find_named(std::vector<Unit>& units, const std::string& name);

}  // namespace weft::dist::fsdp
