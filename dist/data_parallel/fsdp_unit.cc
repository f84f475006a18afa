#include "dist/data_parallel/fsdp_unit.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "autograd/ops.h"
#include "core/transfer.h"
#include "core/view.h"

namespace weft::dist::fsdp {

int Unit::count_trained() const {
  return static_cast<int>(std::ranges::count_if(
      parameters, [](const Parameter& p) { return p.whole.requires_grad(); }));
}

bool Unit::has_slice_gradient() const {
  return std::ranges::any_of(parameters,
                             [](const Parameter& p) { return p.slice.grad().defined(); });
}

std::vector<Unit> cut_into_units(nn::Module& root, const WrapPolicy& policy) {
  std::unordered_map<const void*, std::string> names;
  for (const auto& [name, tensor] : root.named_parameters()) names[tensor.id()] = name;
  std::unordered_set<const void*> taken;
  std::vector<Unit> units;
  // Inner modules first: what they take is no longer their parents'.
  const auto modules = root.named_modules();
  for (auto entry = modules.rbegin(); entry != modules.rend(); ++entry) {
    const auto& [name, module] = *entry;
    const bool is_chosen = policy && policy(name, *module);
    if (!name.empty() && !is_chosen) continue;
    Unit unit;
    unit.name = name.empty() ? "root" : name;
    for (const auto& [inner, tensor] : module->named_parameters()) {
      if (!taken.insert(tensor.id()).second) continue;
      unit.parameters.push_back({.name = names.at(tensor.id()),
                                 .whole = tensor,
                                 .shape = tensor.shape(),
                                 .numel = tensor.numel()});
    }
    if (!unit.parameters.empty()) units.push_back(std::move(unit));
  }
  std::reverse(units.begin(), units.end());
  return units;
}

void lay_out(Unit& unit, const FsdpOptions& options,
             const std::unordered_set<const void*>& products) {
  unit.dtype = unit.parameters[0].whole.dtype();
  unit.device = unit.parameters[0].whole.device();
  const bool is_offloaded = options.cpu_offload || options.offload_optimizer;
  unit.kept_device = is_offloaded ? Device{} : unit.device;
  const auto chosen = [&](DType asked) { return asked == DType::f32 ? unit.dtype : asked; };
  unit.unsharded_dtype = chosen(options.param_dtype);
  unit.reduce_dtype = chosen(options.reduce_dtype);
  const int ranks = options.shard->size();
  const auto is_narrowed = [&](const Parameter& p) {
    return ranks > 1 && options.product_dtype != DType::f32 && unit.dtype == DType::f32 &&
           unit.unsharded_dtype == DType::f32 && products.contains(p.whole.id());
  };
  std::stable_partition(unit.parameters.begin(), unit.parameters.end(), is_narrowed);
  int64_t offset = 0;
  for (Parameter& p : unit.parameters) {
    WEFT_CHECK(p.whole.dtype() == unit.dtype,
               "fsdp: the unit {} holds {} {} and {} {}; a unit has one dtype", unit.name,
               unit.parameters[0].name, unit.dtype, p.name, p.whole.dtype());
    WEFT_CHECK(p.whole.device() == unit.device,
               "fsdp: the unit {} holds {} on {} and {} on {}; a unit has one device", unit.name,
               unit.parameters[0].name, unit.device, p.name, p.whole.device());
    p.offset = offset;
    offset += p.numel;
    if (is_narrowed(p)) unit.wire.narrowed = offset;
  }
  unit.part = (offset + ranks - 1) / ranks;
  unit.padded = unit.part * ranks;
  unit.wire.elements = unit.padded;
  unit.wire_dtype = options.product_dtype;
  for (Parameter& p : unit.parameters) p.kept = kept_by(unit, p, options.shard->rank());
}

Range kept_by(const Unit& unit, const Parameter& p, int rank) {
  const int64_t begin = rank * unit.part - p.offset;
  const int64_t low = std::clamp<int64_t>(begin, 0, p.numel);
  const int64_t high = std::clamp<int64_t>(begin + unit.part, 0, p.numel);
  return {low, high - low};
}

Tensor slice_of_part(const Unit& unit, const Parameter& p, const Tensor& part, int rank) {
  const int64_t place = p.kept.count == 0 ? 0 : p.offset + p.kept.first - rank * unit.part;
  return view::narrow(part, 0, place, p.kept.count);
}

Tensor slice_of_whole(const Parameter& p, const Tensor& whole) {
  const NoGrad guard;
  return view::narrow(view::reshape(ops::contiguous(whole), {p.numel}), 0, p.kept.first,
                      p.kept.count);
}

Tensor flat_view(const Unit& unit) {
  const auto alias = std::make_shared<Storage>(unit.memory->data(), unit.memory->bytes(),
                                               unit.memory->device(), [] {});
  return Tensor::view_of(alias, {unit.padded}, {1}, 0, unit.unsharded_dtype);
}

namespace {

/// `bytes` bytes of a contiguous tensor, from its byte `first` on.
Tensor bytes_of(const Tensor& x, int64_t first, int64_t bytes) {
  const int64_t offset = x.offset() * static_cast<int64_t>(x.itemsize());
  return Tensor::view_of(x.storage(), {bytes}, {1}, offset + first, DType::u8);
}

}  // namespace

Tensor narrowed_part(const Unit& unit, int rank) {
  const NoGrad guard;
  const int64_t begin = rank * unit.part;
  const int64_t narrow = std::clamp<int64_t>(unit.wire.narrowed - begin, 0, unit.part);
  const int64_t bytes = unit.wire.begin(begin + unit.part) - unit.wire.begin(begin);
  const Tensor sent = Tensor::zeros({bytes}, DType::u8, unit.kept_device);
  Tensor weights = Tensor::view_of(sent.storage(), {narrow}, {1}, 0, unit.wire_dtype);
  ops::copy_(weights, view::narrow(unit.kept, 0, 0, narrow));
  // Byte by byte: the others begin at a multiple of their size on the wire, not in a part of it.
  const int64_t others = (unit.part - narrow) * unit.wire.item;
  copy_same_layout(bytes_of(unit.kept, narrow * unit.wire.item, others),
                   bytes_of(sent, bytes - others, others));
  return sent;
}

void widen(const Unit& unit, const Tensor& arrived, const Tensor& whole) {
  const NoGrad guard;
  const Wire& wire = unit.wire;
  Tensor weights = view::narrow(whole, 0, 0, wire.narrowed);
  ops::copy_(weights, Tensor::view_of(arrived.storage(), {wire.narrowed}, {1}, 0, unit.wire_dtype));
  const int64_t others = (unit.padded - wire.narrowed) * wire.item;
  copy_same_layout(bytes_of(arrived, wire.bytes() - others, others),
                   bytes_of(whole, wire.narrowed * wire.item, others));
}

Tensor place_in_flat(const Parameter& p, const Tensor& flat) {
  return view::reshape(view::narrow(flat, 0, p.offset, p.numel), p.shape);
}

std::pair<Unit*, Parameter*> find_entry(std::vector<Unit>& units, const Tensor& entry) {
  for (Unit& unit : units) {
    if (entry.storage() != unit.memory) continue;
    for (Parameter& p : unit.parameters) {
      if (p.offset == entry.offset() && p.shape == entry.shape()) return {&unit, &p};
    }
  }
  return {nullptr, nullptr};
}

std::pair<Unit*, Parameter*> find_named(std::vector<Unit>& units, const std::string& name) {
  for (Unit& unit : units) {
    for (Parameter& p : unit.parameters) {
      if (p.name == name) return {&unit, &p};
    }
  }
  WEFT_FAIL("fsdp: the model has no parameter \"{}\"", name);
}

}  // namespace weft::dist::fsdp
