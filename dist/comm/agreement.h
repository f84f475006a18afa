// What ranks are to have in common.
#pragma once

#include <string>
#include <string_view>

#include "dist/comm/communicator.h"

namespace weft::dist {

/// A text of rank `root` on all ranks.
std::string broadcast_text(Communicator& group, const std::string& text, int root = 0);

/// Tensors of rank `root` on all ranks.
void broadcast_all(Communicator& group, const NamedTensors& tensors, int root = 0);

/// Every rank calls it with lines of its own, "lr 0.1\nseed 7\n". Throws Error on all of them where
/// any has other ones than rank 0: "`what`: rank 0 has lr 0.1, rank 2 has lr 0.2".
void verify_same_lines(Communicator& group, const std::string& mine, std::string_view what);

}  // namespace weft::dist
