#include "dist/cost.h"

#include <algorithm>
#include <deque>
#include <numeric>

#include "dist/stages.h"

namespace weft::dist {
namespace {

constexpr int64_t kBytes = 4;  // of an element

/// Whose rows of the table a strategy's parameters follow.
enum class Family { kSingle, kThreads, kDdp, kZero1, kZero2, kFull };

Family family_of(const std::string& strategy, const Sharing& sharing = {}) {
  if (strategy == "single" || strategy == "pipeline") return Family::kSingle;
  if (strategy == "tp") return sharing.replicas > 1 ? Family::kDdp : Family::kSingle;
  if (strategy == "dp") return Family::kThreads;
  if (strategy == "ddp") return Family::kDdp;
  if (strategy == "zero1") return Family::kZero1;
  if (strategy == "zero2") return Family::kZero2;
  if (strategy == "zero3" || strategy == "fsdp" || strategy == "hsdp" || strategy == "fsdp+tp") {
    return Family::kFull;
  }
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

int64_t StateBytes::total() const {
  return std::accumulate(kinds.begin(), kinds.end(), int64_t{0});
}

StateBytes state_bytes(const std::string& strategy, const ModelLayout& layout,
                       const Sharing& sharing) {
  const Family family = family_of(strategy, sharing);
  const int64_t p = layout.parameters;
  StateBytes bytes;
  if (family == Family::kSingle || family == Family::kThreads || family == Family::kDdp) {
    bytes[MemoryKind::kParameters] = kBytes * p;
    bytes[MemoryKind::kOptimizer] = 2 * kBytes * p;
    if (family != Family::kDdp) {
      bytes[MemoryKind::kGradients] = kBytes * p * sharing.threads;
    } else {
      const std::vector<int64_t> buckets = bucket_elements(layout, sharing.replicas);
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
  const Family family = family_of(strategy, sharing);
  const StateBytes state = state_bytes(strategy, layout, sharing);
  const int64_t kept = state[MemoryKind::kParameters] + state[MemoryKind::kOptimizer] +
                       (family == Family::kDdp ? state[MemoryKind::kBuckets] : 0);
  // Forward ends with all activations and what is gathered. Gradients of the step before are there
  // as parts of ddp's buckets only: zero_grad() has dropped the others, or backward is about to.
  int64_t peak = kept + activations + state[MemoryKind::kGathered];
  // A stage has all gradients from its first backward on, and as many micro-batches in flight as
  // before as long as others follow.
  if (strategy == "pipeline") return peak + state[MemoryKind::kGradients];
  const bool is_cut = family == Family::kZero2 || family == Family::kFull;
  const auto units = static_cast<int64_t>(layout.units.size());
  int64_t whole = layout.root_behind, parts = 0, on_the_way = 0;
  for (int64_t i = 0; i < units; ++i) {
    const int64_t unit = padded(layout.units[units - 1 - i], sharing.shard);
    const int64_t left = activations / units * (units - i);
    whole += unit;
    if (family == Family::kDdp) whole = layout.largest_parameter;
    int64_t now = kept + left + kBytes * (whole * sharing.threads + parts + on_the_way);
    if (family == Family::kFull) now += kBytes * (2 * unit + layout.root());
    peak = std::max(peak, now);
    if (!is_cut) continue;
    // The unit's gradients move into a buffer; the one before last is complete.
    if (i >= 2) parts += padded(layout.units[units + 1 - i], sharing.shard) / sharing.shard;
    whole -= unit;
    on_the_way = std::min<int64_t>(i + 1, 2) * (unit + unit / sharing.shard);
  }
  if (family == Family::kSingle || family == Family::kThreads || family == Family::kZero1) {
    peak = std::max(peak, kept + state[MemoryKind::kGradients] +
                              (family == Family::kZero1 ? state[MemoryKind::kBuckets] : 0));
  }
  return peak;
}

std::string state_formula(const std::string& strategy) {
  if (strategy == "tp") {
    return "16 P_t, P_t = P/T of cut layers and what is whole; among copies one gradient more";
  }
  if (strategy == "fsdp+tp") {
    return "as fsdp, of P_t = P/T of cut layers and what is whole: 16 P_t/F, three units gathered "
           "and three units' gradients";
  }
  if (strategy == "pipeline") return "16 P_s of the stage's parameters, about P/S";
  switch (family_of(strategy)) {
    case Family::kSingle:
      return "4 P parameters + 4 P gradients + 8 P optimizer = 16 P";
    case Family::kThreads:
      return "4 P parameters + 4 N P gradients + 8 P optimizer = (12 + 4 N) P of N threads "
             "together";
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

namespace {

/// Elements that rank r of n sends of x, cut as the communicators cut it (split_evenly).
int64_t sent_by_all_reduce(int64_t x, int n, int r) {
  const int64_t own = split_evenly(x, n)[r];
  return n == 1 ? 0 : x - own + (n - 1) * own;
}

/// Elements of activations and of what tensor parallelism reduces beside them.
int64_t sent_by_cut_layers(const ModelLayout& layout, const Sharing& sharing,
                           const StepShape& step) {
  const int n = sharing.tensor, r = sharing.tensor_index(step.rank);
  if (n == 1) return 0;
  const int64_t images = step.images;
  int64_t sent = 0;
  if (sharing.deals_out_tokens) {
    const int64_t part = images * (padded(layout.tokens, n) / n) * layout.width;
    // Forward gathers and scatters sums; backward of these, and of the input of the first again.
    sent += (5 * layout.cut_layers + 2) * part * (n - 1);
    for (int64_t elements : layout.summed) sent += sent_by_all_reduce(elements, n, r);
  } else {
    sent += 2 * layout.cut_layers * sent_by_all_reduce(images * layout.tokens * layout.width, n, r);
  }
  if (sharing.cuts_head) {
    sent += sent_by_all_reduce(images * layout.head_width, n, r) +
            sent_by_all_reduce(images, n, r) + sent_by_all_reduce(2 * images, n, r);
  }
  return sent;
}

int64_t sent_by_stage(const ModelLayout& layout, const Sharing& sharing, const StepShape& step) {
  const int stage = sharing.stage_index(step.rank);
  int64_t bytes = 0;
  if (stage + 1 < sharing.stages) {
    bytes += kBytes * step.images * layout.given +
             sharing.micro_batches * kActivationHeader * static_cast<int64_t>(sizeof(int64_t));
  }
  if (stage > 0) bytes += kBytes * step.images * layout.taken;
  for (int64_t elements : layout.sizes) {
    bytes +=
        kBytes * sent_by_all_reduce(elements, sharing.replicas, sharing.replica_index(step.rank));
  }
  return bytes;
}

}  // namespace

int64_t sent_bytes(const std::string& strategy, const ModelLayout& layout, const Sharing& sharing,
                   const StepShape& step) {
  const Family family = family_of(strategy, sharing);
  if (strategy == "pipeline") return sent_by_stage(layout, sharing, step);
  const int64_t cut = kBytes * sent_by_cut_layers(layout, sharing, step);
  if (family == Family::kSingle || family == Family::kThreads) return cut;
  const int f = sharing.shard, r = sharing.replicas;
  if (family == Family::kDdp) {
    int64_t elements = step.ddp_elements;
    if (elements == 0) {
      for (int64_t bucket : bucket_elements(layout, r)) elements += bucket;
    }
    return cut + 2 * kBytes * elements / r * (r - 1);
  }
  int64_t reduced = 0, gathered = 0, parts = 0;
  for (int64_t unit : reductions(layout, f)) {
    reduced += unit / f * (f - 1);
    parts += sent_by_all_reduce(unit / f, r, sharing.replica_index(step.rank));
  }
  gathered = reduced;  // all units once, by zero1 and zero2
  if (family == Family::kFull) {
    gathered = 0;
    for (int64_t unit : gathered_units(layout, f)) gathered += unit / f * (f - 1);
  }
  return cut + kBytes * (reduced + gathered + parts);
}

std::string sent_formula(const std::string& strategy) {
  const std::string activations =
      "2 (T-1)/T a forward and backward of each attention and MLP, a = 4 B tokens width; dealt "
      "out, "
      "five times (T-1)/T a";
  if (strategy == "tp") return activations + "; among copies 2 (R-1)/R 4 P_t";
  if (strategy == "fsdp+tp") return activations + "; 3 (F-1)/F 4 P_t, less the last units";
  if (strategy == "pipeline") {
    return "a forward, 104 bytes with each micro-batch, and a backward, a = an activation of the "
           "batch between two stages; among copies 2 (R-1)/R 4 P_s";
  }
  switch (family_of(strategy)) {
    case Family::kSingle:
    case Family::kThreads:
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
