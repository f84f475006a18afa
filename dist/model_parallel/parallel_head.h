// A head that is column-parallel over the classes, and what follows it without the logits being put
// together anywhere.
#pragma once

#include "autograd/ops.h"
#include "dist/comm/communicator.h"

namespace weft::dist {

/// ops::cross_entropy of logits [N, this rank's part of `classes`] against labels of all classes:
/// i64 [N], or probabilities [N, classes]. The logits are nowhere put together: their largest, the
/// sums of their exponentials and the chosen ones travel, three numbers a row.
Tensor parallel_cross_entropy(const Tensor& logits, const Tensor& labels, int64_t classes,
                              const CommunicatorPtr& group,
                              const ops::CrossEntropyOptions& options = {});
/// i64 [N]: the class of each row with the largest logit, the first of equals.
Tensor parallel_argmax(const Tensor& logits, int64_t classes, const CommunicatorPtr& group);

}  // namespace weft::dist
