#include "dist/model_parallel/rank_parts.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "autograd/ops.h"

namespace weft::dist {
namespace {

std::vector<int64_t> even_parts(int64_t n, int ranks) {
  std::vector<int64_t> parts(ranks);
  for (int r = 0; r < ranks; ++r) parts[r] = even_part(n, ranks, r);
  return parts;
}

int64_t sequence_part(int64_t length, int ranks) { return (length + ranks - 1) / ranks; }

}  // namespace

int64_t even_part(int64_t n, int ranks, int rank) { return n / ranks + (rank < n % ranks ? 1 : 0); }

int64_t even_begin(int64_t n, int ranks, int rank) {
  return rank * (n / ranks) + std::min<int64_t>(rank, n % ranks);
}

std::vector<Cut::Part> Cut::parts(int ranks, int rank) const {
  const int64_t all = std::accumulate(sections.begin(), sections.end(), int64_t{0});
  std::vector<Part> parts;
  int64_t first = 0, offset = 0;
  for (const int64_t size : sections) {
    const int64_t section = length / all * size, mine = even_part(section, ranks, rank);
    parts.push_back({section, first + even_begin(section, ranks, rank), offset, mine});
    first += section;
    offset += mine;
  }
  WEFT_ASSERT(first == length);
  return parts;
}

int64_t Cut::kept(int ranks, int rank) const {
  const Part last = parts(ranks, rank).back();
  return last.offset + last.length;
}

Tensor part_of(const Tensor& whole, const Cut& cut, const Communicator& group) {
  const NoGrad guard;
  Cut known = cut;
  known.length = whole.size(cut.dim);
  Tensors parts;
  for (const Cut::Part& part : known.parts(group.size(), group.rank())) {
    parts.push_back(ops::contiguous(ops::narrow(detach(whole), cut.dim, part.begin, part.length)));
  }
  return parts.size() == 1 ? parts[0] : ops::cat(parts, cut.dim);
}

Tensor whole_of(const Tensor& part, const Cut& cut, Communicator& group) {
  const NoGrad guard;
  Tensors sections;
  for (const Cut::Part& mine : cut.parts(group.size(), group.rank())) {
    sections.push_back(
        gather_even_parts(ops::narrow(detach(part), cut.dim, mine.offset, mine.length), cut.dim,
                          mine.section, group));
  }
  return sections.size() == 1 ? sections[0] : ops::cat(sections, cut.dim);
}

Tensor tokens_of_rank(const Tensor& x, int64_t dim, int ranks, int rank) {
  const int64_t along = wrap_dim(dim, x.dim(), "tokens_of_rank"), length = x.size(along),
                part = sequence_part(length, ranks), begin = std::min(length, rank * part),
                count = std::min(part, length - begin);
  const Tensor mine = ops::narrow(x, along, begin, count);
  if (count == part) return mine;
  Shape rest = x.shape();
  rest[along] = part - count;
  const Tensor zeros = Tensor::zeros(rest, x.dtype(), x.device());
  return count == 0 ? zeros : ops::cat({mine, zeros}, along);
}

Tensor summed(const Tensor& x, Communicator& group) {
  const Tensor sum = ops::clone(x);
  group.all_reduce(sum).wait();
  return sum;
}

Gathering::Gathering(const Tensor& part, int64_t dim, std::vector<int64_t> counts,
                     Communicator& group)
    : shape_(part.shape()),
      dim_(wrap_dim(dim, part.dim(), "Gathering")),
      counts_(std::move(counts)) {
  const int64_t others = part.numel() / part.size(dim_);
  int64_t all = 0;
  for (int64_t count : counts_) {
    elements_.push_back(count * others);
    all += elements_.back();
  }
  all_ = Tensor::empty({all}, part.dtype(), part.device());
  work_ = group.all_gather(all_, ops::contiguous(part), elements_);
}

Tensor Gathering::finish(int64_t length) {
  work_.wait();
  Tensors parts;
  int64_t begin = 0;
  for (size_t r = 0; r < counts_.size(); ++r) {
    const int64_t kept = std::min(counts_[r], length);
    length -= kept;
    Shape shape = shape_;
    shape[dim_] = counts_[r];
    const Tensor part = ops::reshape(ops::narrow(all_, 0, begin, elements_[r]), shape);
    begin += elements_[r];
    if (kept > 0) parts.push_back(ops::narrow(part, dim_, 0, kept));
  }
  return ops::cat(parts, dim_);
}

Gathering gather_tokens(const Tensor& x, int64_t dim, Communicator& group) {
  return Gathering(x, dim, std::vector<int64_t>(group.size(), x.size(dim)), group);
}

Tensor gather_even_parts(const Tensor& x, int64_t dim, int64_t length, Communicator& group) {
  return Gathering(x, dim, even_parts(length, group.size()), group).finish(length);
}

Scattering::Scattering(const Tensor& x, int64_t dim, Communicator& group) {
  Tensors parts;
  for (int r = 0; r < group.size(); ++r) {
    parts.push_back(tokens_of_rank(x, dim, group.size(), r));
  }
  const Tensor in = ops::stack(parts, 0);  // the parts one after another in memory
  part_ = Tensor::empty(parts[0].shape(), x.dtype(), x.device());
  work_ = group.reduce_scatter(part_, in);
}

Tensor Scattering::finish() const {
  work_.wait();
  return part_;
}

}  // namespace weft::dist
