// Which op, as the reader wrote it, what was launched is for: `weft profile` and `weft bench step
// --bytes` tell a step's kernels apart by it.
#pragma once

#include <string>
#include <string_view>

#include "autograd/op_hook.h"

namespace weft::cli {

/// A recorder is one. It sets itself as the hook once it is whole.
class OutermostOps : public OpHook {
 public:
  // Ops within a node's gradient function, and nodes within another's (a checkpoint's), are part of
  // the outermost: it is the op that the reader wrote.
  void computed(std::string_view op) final {
    if (depth_ == 0) claim(op);
  }
  void begin_backward(std::string_view op) final {
    if (depth_++ > 0) return;
    claim("");
    node_ = op;
  }
  void end_backward() final {
    if (--depth_ == 0) claim(node_);
  }

 protected:
  /// What was launched since the last claim was for `op`; an empty one says that it was for none.
  virtual void claim(std::string_view op) = 0;

 private:
  std::string node_;
  int depth_ = 0;
};

}  // namespace weft::cli
