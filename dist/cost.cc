#include "dist/cost.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

namespace weft::dist {
namespace {

constexpr int64_t kBytes = 4;  // of an element

enum class Family { kSingle, kDdp, kZero1, kZero2, kFull };

Family family_of(const std::string& strategy) {
  if (strategy == "single") return Family::kSingle;
  if (strategy == "ddp") return Family::kDdp;
  if (strategy == "zero1") return Family::kZero1;
  if (strategy == "zero2") return Family::kZero2;
  if (strategy == "zero3" || strategy == "fsdp" || strategy == "hsdp") return Family::kFull;
  WEFT_FAIL("cost: no formula for strategy \"{}\"", strategy);
}

int64_t padded(int64_t elements, int ranks) { return (elements + ranks - 1) / ranks * ranks; }

/// The units of a step's backward pass, in the order in which their gradients are complete: the
/// root last.
std::vector<int64_t> reductions(const ModelLayout& layout, int shard) {
  std::vector<int64_t> units;
  for (auto unit = layout.units.rbegin(); unit != layout.units.rend(); ++unit) {
    units.push_back(padded(*unit, shard));
  }
  if (layout.root() > 0) units.push_back(padded(layout.root(), shard));
  return units;
}

/// Two units' gradients are on their way at a time, with the parts that they are summed into.
int64_t peak_of_buckets(const std::vector<int64_t>& units, int shard) {
  int64_t peak = 0;
  for (size_t i = 0; i < units.size(); ++i) {
    const int64_t before = i > 0 ? units[i - 1] : 0;
    peak = std::max(peak, (units[i] + before) + (units[i] + before) / shard);
  }
  return peak;
}

/// A unit's gradients arrive whole, next to the parts that are complete: those of all units but the
/// two on their way. The root's behind the units arrive first and wait for the rest of it.
int64_t peak_of_gradients(const ModelLayout& layout, const std::vector<int64_t>& units, int shard) {
  int64_t parts = 0, peak = 0;
  for (size_t i = 0; i < units.size(); ++i) {
    const bool is_root = layout.root() > 0 && i + 1 == units.size();
    const int64_t whole =
        is_root ? layout.root() : layout.units[layout.units.size() - 1 - i] + layout.root_behind;
    peak = std::max(peak, parts + whole);
    if (i >= 1) parts += units[i - 1] / shard;
  }
  return std::max(peak, std::accumulate(units.begin(), units.end(), int64_t{0}) / shard);
}

/// Elements of the units in the order of gathering, padded.
std::vector<int64_t> gathered_units(const ModelLayout& layout, int shard) {
  std::vector<int64_t> elements;
  for (int unit : gather_order(layout)) {
    elements.push_back(padded(unit < 0 ? layout.root() : layout.units[unit], shard));
  }
  return elements;
}

}  // namespace

ModelLayout layout_of(nn::Module& module, const WrapPolicy& policy) {
  ModelLayout layout;
  std::unordered_map<const void*, size_t> owners;  // unit + 1; 0: the root
  std::vector<int64_t> sizes;
  // As FullySharded does: inner modules first.
  auto modules = module.named_modules();
  for (auto entry = modules.rbegin(); entry != modules.rend(); ++entry) {
    const auto& [name, inner] = *entry;
    if (name.empty() || !policy || !policy(name, *inner)) continue;
    int64_t elements = 0;
    for (const auto& [parameter, tensor] : inner->named_parameters()) {
      if (owners.try_emplace(tensor.id(), sizes.size() + 1).second) elements += tensor.numel();
    }
    if (elements > 0) sizes.push_back(elements);
  }
  layout.units.assign(sizes.rbegin(), sizes.rend());
  bool is_behind = false;
  for (const auto& [name, tensor] : module.named_parameters()) {
    const int64_t n = tensor.numel();
    layout.parameters += n;
    layout.largest_parameter = std::max(layout.largest_parameter, n);
    layout.sizes.push_back(n);
    if (owners.count(tensor.id())) {
      is_behind = true;
    } else {
      (is_behind ? layout.root_behind : layout.root_before) += n;
    }
  }
  return layout;
}

Sharing sharing_of(const std::string& strategy, int ranks, int shard_size) {
  const Family family = family_of(strategy);
  if (family == Family::kSingle || family == Family::kDdp) return {1, ranks};
  if (strategy != "hsdp") return {ranks, 1};
  if (shard_size == 0) shard_size = default_shard_size(ranks);
  WEFT_CHECK(ranks % shard_size == 0, "shard-size {} does not divide {} devices", shard_size,
             ranks);
  return {shard_size, ranks / shard_size};
}

int64_t StateBytes::total() const {
  return std::accumulate(kinds.begin(), kinds.end(), int64_t{0});
}

StateBytes state_bytes(const std::string& strategy, const ModelLayout& layout,
                       const Sharing& sharing) {
  const Family family = family_of(strategy);
  const int64_t p = layout.parameters;
  StateBytes bytes;
  if (family == Family::kSingle || family == Family::kDdp) {
    bytes[MemoryKind::kParameters] = kBytes * p;
    bytes[MemoryKind::kOptimizer] = 2 * kBytes * p;
    if (family == Family::kSingle) {
      bytes[MemoryKind::kGradients] = kBytes * p;
    } else {
      const std::vector<int64_t> buckets = bucket_elements(layout, sharing.ranks());
      bytes[MemoryKind::kGradients] = kBytes * layout.largest_parameter;
      bytes[MemoryKind::kBuckets] =
          kBytes * std::accumulate(buckets.begin(), buckets.end(), int64_t{0});
    }
    return bytes;
  }
  const std::vector<int64_t> units = reductions(layout, sharing.shard);
  const int64_t whole = std::accumulate(units.begin(), units.end(), int64_t{0});
  const int64_t part = whole / sharing.shard;
  bytes[MemoryKind::kParameters] = kBytes * (family == Family::kFull ? part : whole);
  bytes[MemoryKind::kOptimizer] = 2 * kBytes * part;
  bytes[MemoryKind::kBuckets] = kBytes * peak_of_buckets(units, sharing.shard);
  bytes[MemoryKind::kGradients] =
      kBytes * (family == Family::kZero1 ? p : peak_of_gradients(layout, units, sharing.shard));
  if (family != Family::kFull) return bytes;
  // Two units at hand and the next on its way.
  const std::vector<int64_t> gathered = gathered_units(layout, sharing.shard);
  int64_t peak = 0;
  for (size_t i = 0; i < gathered.size(); ++i) {
    int64_t three = 0;
    for (size_t k = i; k < std::min(i + 3, gathered.size()); ++k) three += gathered[k];
    peak = std::max(peak, three);
  }
  bytes[MemoryKind::kGathered] = kBytes * peak;
  return bytes;
}

int64_t peak_bytes(const std::string& strategy, const ModelLayout& layout, const Sharing& sharing,
                   int64_t activations) {
  const Family family = family_of(strategy);
  const StateBytes state = state_bytes(strategy, layout, sharing);
  const int64_t kept = state[MemoryKind::kParameters] + state[MemoryKind::kOptimizer] +
                       (family == Family::kDdp ? state[MemoryKind::kBuckets] : 0);
  // Forward ends with all activations and what is gathered. Gradients of the step before are there
  // as parts of ddp's buckets only: zero_grad() has dropped the others, or backward is about to.
  int64_t peak = kept + activations + state[MemoryKind::kGathered];
  const bool is_cut = family == Family::kZero2 || family == Family::kFull;
  const auto units = static_cast<int64_t>(layout.units.size());
  int64_t whole = layout.root_behind, parts = 0, on_the_way = 0;
  for (int64_t i = 0; i < units; ++i) {
    const int64_t unit = padded(layout.units[units - 1 - i], sharing.shard);
    const int64_t left = activations / units * (units - i);
    whole += unit;
    if (family == Family::kDdp) whole = layout.largest_parameter;
    int64_t now = kept + left + kBytes * (whole + parts + on_the_way);
    if (family == Family::kFull) now += kBytes * (2 * unit + layout.root());
    peak = std::max(peak, now);
    if (!is_cut) continue;
    // The unit's gradients move into a buffer; the one before last is complete.
    if (i >= 2) parts += padded(layout.units[units + 1 - i], sharing.shard) / sharing.shard;
    whole -= unit;
    on_the_way = std::min<int64_t>(i + 1, 2) * (unit + unit / sharing.shard);
  }
  if (family == Family::kSingle || family == Family::kZero1) {
    peak = std::max(peak, kept + kBytes * layout.parameters +
                              (family == Family::kZero1 ? state[MemoryKind::kBuckets] : 0));
  }
  return peak;
}

std::string state_formula(const std::string& strategy) {
  switch (family_of(strategy)) {
    case Family::kSingle:
      return "4 P parameters + 4 P gradients + 8 P optimizer = 16 P";
    case Family::kDdp:
      return "4 P parameters + 4 P buckets + 8 P optimizer = 16 P, and one gradient";
    case Family::kZero1:
      return "4 P parameters + 4 P gradients + 8 P/F optimizer = (8 + 8/F) P, and two units on "
             "their way";
    case Family::kZero2:
      return "4 P parameters + 4 P/F gradients + 8 P/F optimizer = (4 + 12/F) P, and three units' "
             "gradients";
    case Family::kFull:
      return "4 P/F parameters + 4 P/F gradients + 8 P/F optimizer = 16 P/F, three units gathered "
             "and three units' gradients";
  }
  return "";
}

int64_t sent_bytes(const std::string& strategy, const ModelLayout& layout, const Sharing& sharing,
                   int64_t ddp_elements) {
  const Family family = family_of(strategy);
  const int n = sharing.ranks(), f = sharing.shard, r = sharing.replicas;
  if (family == Family::kSingle) return 0;
  if (family == Family::kDdp) {
    if (ddp_elements == 0) {
      for (int64_t elements : bucket_elements(layout, n)) ddp_elements += elements;
    }
    return 2 * kBytes * ddp_elements / n * (n - 1);
  }
  int64_t reduced = 0, gathered = 0, parts = 0;
  for (int64_t unit : reductions(layout, f)) {
    reduced += unit / f * (f - 1);
    // The first rank's part of what R cut, the largest.
    parts += unit / f + (r - 2) * (padded(unit / f, r) / r);
  }
  gathered = reduced;  // all units once, by zero1 and zero2
  if (family == Family::kFull) {
    gathered = 0;
    for (int64_t unit : gathered_units(layout, f)) gathered += unit / f * (f - 1);
  }
  return kBytes * (reduced + gathered + parts);
}

std::string sent_formula(const std::string& strategy) {
  switch (family_of(strategy)) {
    case Family::kSingle:
      return "0";
    case Family::kDdp:
      return "2 (N-1)/N 4 P";
    case Family::kZero1:
    case Family::kZero2:
      return "2 (F-1)/F 4 P";
    case Family::kFull:
      return strategy == "hsdp" ? "3 (F-1)/F 4 P + 2 (R-1)/R 4 P/F, less the last units"
                                : "3 (F-1)/F 4 P, less the last units";
  }
  return "";
}

std::vector<int64_t> bucket_elements(const ModelLayout& layout, int ranks,
                                     const BucketSizes& sizes) {
  std::vector<int64_t> buckets;
  bool is_open = false;
  for (auto size = layout.sizes.rbegin(); size != layout.sizes.rend(); ++size) {
    if (!is_open) buckets.push_back(0);
    buckets.back() += *size;
    is_open = buckets.back() * kBytes < (buckets.size() == 1 ? sizes.first : sizes.bytes);
  }
  for (int64_t& elements : buckets) elements = padded(elements, ranks);
  return buckets;
}

std::vector<int> gather_order(const ModelLayout& layout) {
  const int units = static_cast<int>(layout.units.size());
  std::vector<int> order;
  std::deque<int> resident;
  const auto touch = [&](int unit) {
    if (std::find(resident.begin(), resident.end(), unit) != resident.end()) return;
    while (resident.size() >= 2) resident.pop_front();
    resident.push_back(unit);
    order.push_back(unit);
  };
  if (layout.root_before > 0) touch(-1);
  for (int u = 0; u < units; ++u) touch(u);
  if (layout.root_behind > 0) touch(-1);
  // Backward: a unit goes when its gradients are complete; the root's last parameters, those of the
  // input, need no values to get theirs.
  for (int u = units - 1; u >= 0; --u) {
    touch(u);
    std::erase(resident, u);
  }
  return order;
}

}  // namespace weft::dist
