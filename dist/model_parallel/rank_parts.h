// Who has which part of a tensor that is dealt out to the ranks of a group, and the parts on their
// way. Parts differ by one at most (even_part), or are those of a sequence: of T tokens each rank
// has ceil(T / N), and the last ranks fill up with zeros. None of this is recorded on the tape;
// rank_collectives.h is.
#pragma once

#include <vector>

#include "dist/comm/communicator.h"

namespace weft::dist {

/// Elements of n that rank r of N gets where parts differ by one at most: the first ones are the
/// larger.
int64_t even_part(int64_t n, int ranks, int rank);

/// Where the part of rank r begins.
int64_t even_begin(int64_t n, int ranks, int rank);

/// Which part of a parameter rank r of N keeps: of each section along `dim` the r-th of N parts,
/// which differ by one at most. in_proj_weight [3 W, W] has three equal sections: rows of q, k and
/// v. Of grouped heads those of q are the larger.
struct Cut {
  int64_t dim = 0;
  std::vector<int64_t> sections = {1};  // their sizes, each in relation to the others
  int64_t length = 0;                   // of the whole parameter along dim

  /// A rank's part of a section.
  struct Part {
    int64_t section;  // length of the section
    int64_t begin;    // of the part in the whole
    int64_t offset;   // of the part in what the rank keeps
    int64_t length;
  };
  std::vector<Part> parts(int ranks, int rank) const;
  /// What a rank keeps along dim.
  int64_t kept(int ranks, int rank) const;
  /// Elements of a parameter of so many that a rank keeps.
  int64_t elements(int64_t whole, int ranks, int rank) const {
    return whole / length * kept(ranks, rank);
  }
};
Tensor part_of(const Tensor& whole, const Cut& cut, const Communicator& group);
/// All parts together, on every rank.
Tensor whole_of(const Tensor& part, const Cut& cut, Communicator& group);

/// Part r of a sequence, filled up with zeros.
Tensor tokens_of_rank(const Tensor& x, int64_t dim, int ranks, int rank);

/// The sum over the ranks.
Tensor summed(const Tensor& x, Communicator& group);

/// The ranks' parts along a dimension on their way here: counts[r] of rank r.
class Gathering {
 public:
  Gathering(const Tensor& part, int64_t dim, std::vector<int64_t> counts, Communicator& group);
  /// Put together, the first `length` of them.
  Tensor finish(int64_t length);

 private:
  const Shape shape_;
  const int64_t dim_;
  const std::vector<int64_t> counts_;
  std::vector<int64_t> elements_;
  Tensor all_;
  Work work_;
};
/// Of a sequence.
Gathering gather_tokens(const Tensor& x, int64_t dim, Communicator& group);
/// Parts whose sizes differ by one at most, of `length` together.
Tensor gather_even_parts(const Tensor& x, int64_t dim, int64_t length, Communicator& group);

/// This rank's part of a sequence's sum over ranks, on its way.
class Scattering {
 public:
  Scattering(const Tensor& x, int64_t dim, Communicator& group);
  Tensor finish() const;

 private:
  Tensor part_;
  Work work_;
};

}  // namespace weft::dist
