// Tensors shared with other libraries: DLPack (both versions of its struct), Python's buffer
// protocol, NumPy's arrays. Nothing is copied unless that is asked for, in either direction.
//
// Weft's memory is writable, that of others need not be. What was taken over read-only stays so:
// check_writable() refuses to change it, and it is handed on read-only.
#pragma once

#include <nanobind/nanobind.h>

#include "core/tensor.h"

namespace weft::python {

/// A tensor on the memory of an object that speaks DLPack or the buffer protocol, or has an
/// __array__. The object is kept alive. Throws a TypeError or BufferError that says what it lacks.
Tensor import_array(nanobind::handle object);

bool is_read_only(const Tensor& x);
/// Throws Error naming `op` when x lies in memory that was taken over read-only.
void check_writable(std::string_view op, const Tensor& x);

}  // namespace weft::python
