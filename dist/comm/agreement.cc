#include "dist/comm/agreement.h"

#include <cstring>
#include <sstream>
#include <vector>

namespace weft::dist {

std::string broadcast_text(Communicator& group, const std::string& text, int root) {
  const Tensor length = Tensor::from(std::vector<int64_t>{static_cast<int64_t>(text.size())}, {1});
  group.broadcast(length, root).wait();
  const int64_t count = length.data<int64_t>()[0];
  if (count == 0) return "";
  const Tensor bytes = Tensor::zeros({count}, DType::u8);
  if (group.rank() == root) std::memcpy(bytes.raw(), text.data(), text.size());
  group.broadcast(bytes, root).wait();
  return {static_cast<const char*>(bytes.raw()), bytes.nbytes()};
}

void broadcast_all(Communicator& group, const NamedTensors& tensors, int root) {
  std::vector<Work> works;
  for (const auto& [name, tensor] : tensors) works.push_back(group.broadcast(tensor, root));
  for (const Work& work : works) work.wait();
}

void verify_same_lines(Communicator& group, const std::string& mine, std::string_view what) {
  const std::string first = broadcast_text(group, mine);
  // The lowest rank that differs; size() when none does.
  const int64_t differs = mine == first ? group.size() : group.rank();
  const Tensor lowest = Tensor::from(std::vector<int64_t>{differs}, {1});
  group.all_reduce(lowest, ReduceOp::kMin).wait();
  const int rank = static_cast<int>(lowest.data<int64_t>()[0]);
  if (rank == group.size()) return;
  const std::string theirs = broadcast_text(group, mine, rank);
  const auto next_line = [](std::istream& text) {
    std::string line;
    std::getline(text, line);
    return line.empty() ? "nothing" : line;
  };
  std::istringstream lines(first), other_lines(theirs);
  std::string line, other;
  while (line == other) line = next_line(lines), other = next_line(other_lines);
  WEFT_FAIL("{}: rank 0 has {}, rank {} has {}", what, line, rank, other);
}

}  // namespace weft::dist
