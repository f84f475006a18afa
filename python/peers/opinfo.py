"""Weft held against PyTorch's own test data: its OpInfo entries, with all their samples.

    opinfo.py [--op REGEX] [--verbose] [--markdown]

An entry of torch.testing._internal.common_methods_invocations names an operator, its dtypes, and makes samples of its
arguments. For each whose operator Weft has, every sample in every dtype that both have goes through both, and compared
are

    values              with shapes and dtypes
    gradients           float32 and float64, of a random combination of the results
    second gradients    float64, of a random combination of the first
    errors              what PyTorch says is a mistake is to raise

A sample that Weft refuses with an exception is no failure, and is counted with what it said; a value that differs is one,
unless REASONS has it. The exit status is 1 where a failure has no reason, or a reason no failure."""

import argparse
import collections
import math
import re
import sys
import warnings

import torch

import weft

warnings.simplefilter("ignore")

from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402

DTYPES = {
    torch.float64: weft.float64,
    torch.float32: weft.float32,
    torch.float16: weft.float16,
    torch.bfloat16: weft.bfloat16,
    torch.int64: weft.int64,
    torch.int32: weft.int32,
    torch.uint8: weft.uint8,
    torch.bool: weft.bool,
}
# Relative and absolute: what the two may round differently. PyTorch's tests allow its devices as much.
TOLERANCES = {
    torch.float64: (1e-7, 1e-9),
    torch.float32: (2e-5, 2e-5),
    torch.float16: (4e-3, 4e-3),
    torch.bfloat16: (2e-2, 2e-2),
}

# Entries whose operator Weft writes otherwise.
F = weft.nn.functional
ADAPTERS = {
    "nn.functional.softmin": None,
    "true_divide": lambda a, b: a / b,
    "clamp_max": lambda x, m: weft.minimum(x, m) if isinstance(m, weft.Tensor) else weft.clamp(x, max=m),
    "clamp_min": lambda x, m: weft.maximum(x, m) if isinstance(m, weft.Tensor) else weft.clamp(x, min=m),
    "mv": lambda a, b: weft.matmul(a, b),
    "inner": lambda a, b: weft.matmul(a, b) if a.ndim == b.ndim == 1 else refuse("not of two vectors"),
    "__rmatmul__": lambda a, b: weft.matmul(b, a),
    "broadcast_to": lambda x, shape: x.expand(shape),
    "logical_xor": lambda a, b: a.ne(b) if a.dtype == b.dtype == weft.bool else refuse("not of bool tensors"),
    "bitwise_and": lambda a, b: a & b,
    "bitwise_or": lambda a, b: a | b,
    "bitwise_xor": lambda a, b: a ^ b,
    "bitwise_not": lambda x: ~x,
    "__rdiv__": lambda a, b: b / a,
    "rsub": lambda a, b, alpha=1: b - a * alpha if alpha != 1 else b - a,
    "ravel": lambda x: x.flatten(),
    "reshape_as": lambda x, y: x.reshape(y.shape),
    "byte": lambda x: x.to(dtype=weft.uint8),
    "fill": lambda x, value: x.clone().fill_(value),
    "index_put": lambda x, indices, values, accumulate=False: put(x, indices, values, accumulate),
    "_getitem": None,
    "linalg.vector_norm": lambda x, ord=2, dim=None, keepdim=False, **more: weft.norm(x, ord, dim, keepdim, **more),
    "nn.functional.upsample_nearest": lambda x, size=None, scale_factor=None: F.interpolate(x, size, scale_factor, mode="nearest"),
    "nn.functional.upsample_bilinear": lambda x, size=None, scale_factor=None: F.interpolate(
        x, size, scale_factor, mode="bilinear", align_corners=True
    ),
    "mT": lambda x: x.mT,
    "T": lambda x: x.T,
    "unsqueeze_copy": lambda x, dim: x.unsqueeze(dim).clone(),
    "transpose_copy": lambda x, a, b: x.transpose(a, b).clone(),
    "permute_copy": lambda x, dims: x.permute(dims).clone(),
    "expand_copy": lambda x, shape: x.expand(shape).clone(),
    "diagonal_copy": lambda x, offset=0, dim1=0, dim2=1: x.diagonal(offset, dim1, dim2).clone(),
    "narrow_copy": lambda x, dim, start, length: x.narrow(dim, start, length).clone(),
    "view_copy": lambda x, shape: x.view(shape).clone() if isinstance(shape, tuple) else refuse("a view as a dtype"),
    "squeeze_copy": lambda x, *dims: x.squeeze(*dims).clone(),
    "t_copy": lambda x: x.t().clone(),
    "alias_copy": lambda x: x.clone(),
    "positive": lambda x: +x,
    "fliplr": lambda x: x.flip(1),
    "flipud": lambda x: x.flip(0),
    "hstack": lambda xs: weft.cat(xs, 0 if xs[0].ndim == 1 else 1) if xs[0].ndim else weft.stack(xs),
    "new_zeros": lambda x, size, dtype=None, **more: weft.zeros(size, dtype=dtype or x.dtype),
    "new_ones": lambda x, size, dtype=None, **more: weft.ones(size, dtype=dtype or x.dtype),
    "new_full": lambda x, size, value, dtype=None, **more: weft.full(size, value, dtype=dtype or x.dtype),
    "__getitem__": lambda x, index: x[index],
    "to": lambda x, *a, **k: x.to(*a, **k),
    "linalg.norm": None,
    "linalg.diagonal": lambda x, offset=0, dim1=-2, dim2=-1: x.diagonal(offset, dim1, dim2),
    "sparse.mm": None,
    "nn.functional.glu": lambda x, dim=-1: (lambda a, b: a * b.sigmoid())(*x.chunk(2, dim)),
    "argwhere": lambda x: weft.nonzero(x),
    "atleast_1d": None,
    "zero_": lambda x: x.clone().zero_(),
    "item": lambda x: x.item(),
    "masked.softmax": None,
}
# Results are random, or memory as it was found.
_RANDOM = {
    "empty", "empty_like", "randn", "rand_like", "randn_like", "nn.functional.dropout", "zero_", "item", "sparse.mm",
}


def refuse(why):
    raise weft.Error(why)


def put(x, indices, values, accumulate):
    if accumulate:
        refuse("index_put: accumulate")
    y = x.clone()
    y[tuple(indices)] = values
    return y


def function_of(name):
    """Weft's function for an entry, or None."""
    if name in ADAPTERS:
        return ADAPTERS[name]
    if name.startswith("nn.functional."):
        return getattr(F, name.removeprefix("nn.functional."), None)
    if "." in name:
        return None
    found = getattr(weft, name, None)
    if found is None or not callable(found) or isinstance(found, weft.dtype):
        found = getattr(weft.Tensor, name, None)
    return found if callable(found) else None


def convert(x):
    """What Weft takes for an argument of torch's."""
    if isinstance(x, torch.Tensor):
        if x.dtype not in DTYPES:
            refuse(f"no dtype {x.dtype}")
        y = weft.from_dlpack(x.detach().clone(memory_format=torch.preserve_format))
        return y.requires_grad_() if x.requires_grad else y
    if isinstance(x, torch.dtype):
        return DTYPES[x] if x in DTYPES else refuse(f"no dtype {x}")
    if isinstance(x, torch.Size):
        return tuple(x)
    if isinstance(x, (list, tuple)):
        return type(x)(convert(y) for y in x) if type(x) in (list, tuple) else tuple(convert(y) for y in x)
    if isinstance(x, dict):
        return {key: convert(y) for key, y in x.items()}
    return x


def tensors(x):
    """All tensors of a result, in order."""
    if isinstance(x, (torch.Tensor, weft.Tensor)):
        return [x]
    if isinstance(x, (list, tuple)):
        return [tensor for y in x for tensor in tensors(y)]
    return []


def back(y):
    return torch.from_dlpack(y.detach()) if isinstance(y, weft.Tensor) else torch.as_tensor(y)


def difference(ours, theirs):
    """What is wrong with our results, or nothing."""
    if isinstance(theirs, (list, tuple)):
        if not isinstance(ours, (list, tuple)) or len(ours) != len(theirs):
            return f"{len(theirs)} results expected, got {type(ours).__name__}"
        return next((d for a, b in zip(ours, theirs) if (d := difference(a, b))), None)
    if not isinstance(theirs, torch.Tensor):
        same = ours == theirs or (isinstance(theirs, float) and math.isclose(ours, theirs, rel_tol=1e-6)) or (
            isinstance(theirs, float) and math.isnan(theirs) and math.isnan(ours)
        )
        return None if same else f"{theirs} expected, got {ours}"
    if not isinstance(ours, weft.Tensor):
        return f"a tensor expected, got {type(ours).__name__}"
    if theirs.dtype not in DTYPES:
        return f"{theirs.dtype} expected"
    if DTYPES[theirs.dtype] != ours.dtype:
        return f"{theirs.dtype} expected, got {ours.dtype}"
    mine = back(ours)
    if mine.shape != theirs.shape:
        return f"shape {tuple(theirs.shape)} expected, got {tuple(mine.shape)}"
    relative, absolute = TOLERANCES.get(theirs.dtype, (0, 0))
    try:
        torch.testing.assert_close(mine, theirs.detach(), rtol=relative, atol=absolute, equal_nan=True)
    except AssertionError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        return "values: " + " ".join(lines[1:3])
    return None


class Count(collections.Counter):
    pass


class Entry:
    def __init__(self, op):
        self.op, self.name = op, op.name + (f" {op.variant_test_name}" if op.variant_test_name else "")
        self.function = function_of(op.name)
        self.counts = Count()
        self.refused = collections.Counter()
        self.failures = []

    def fail(self, kind, dtype, sample, what):
        self.counts[kind + " failed"] += 1
        self.failures.append((kind, str(dtype).removeprefix("torch."), what, sample.summary()[:300]))

    def run(self):
        for dtype in DTYPES:
            if dtype not in self.op.dtypes:
                continue
            differentiable = dtype in (torch.float32, torch.float64) and self.op.supports_autograd
            torch.manual_seed(0)
            try:
                samples = list(self.op.sample_inputs("cpu", dtype, requires_grad=differentiable))
            except Exception as error:  # an entry that cannot make its own
                self.refused[f"PyTorch has no samples: {type(error).__name__}"] += 1
                continue
            for sample in samples:
                self.check(sample, dtype, differentiable)
        self.check_errors()

    def check(self, sample, dtype, differentiable):
        try:
            theirs = self.op(sample.input, *sample.args, **sample.kwargs)
        except Exception:
            self.refused["PyTorch raises"] += 1
            return
        try:
            given, args, kwargs = convert(sample.input), convert(list(sample.args)), convert(sample.kwargs)
            ours = self.function(given, *args, **{k: v for k, v in kwargs.items() if k != "device" and v is not None or k in ("dim", "attn_mask")})
        except Exception as error:
            message = str(error).splitlines()[0] if str(error) else ""
            self.refused[f"{type(error).__name__}: {message[:100]}"] += 1
            self.counts["refused"] += 1
            return
        if self.op.name in _RANDOM:
            theirs, ours = torch.zeros(()), weft.zeros(())
        what = difference(ours, theirs)
        if what:
            return self.fail("value", dtype, sample, what)
        self.counts["value passed"] += 1
        if differentiable:
            self.check_gradients(sample, dtype, theirs, ours, (given, args, kwargs))

    def check_gradients(self, sample, dtype, theirs, ours, arguments):
        if sample.output_process_fn_grad is not None:
            processed = sample.output_process_fn_grad(theirs)
            if processed is not theirs:
                return
        their_outputs = [t for t in tensors(theirs) if t.requires_grad]
        my_outputs = [o for o, t in zip(tensors(ours), tensors(theirs)) if t.requires_grad]
        their_inputs = [t for t in tensors([sample.input, list(sample.args), list(sample.kwargs.values())]) if t.requires_grad]
        my_inputs = [t for t in tensors([arguments[0], arguments[1], list(arguments[2].values())]) if t.requires_grad]
        if not their_outputs or not their_inputs or len(their_inputs) != len(my_inputs):
            return
        twice = dtype == torch.float64 and self.op.supports_gradgrad
        torch.manual_seed(1)
        weights = [torch.randn_like(t, memory_format=torch.contiguous_format) for t in their_outputs]
        try:
            expected = torch.autograd.grad(their_outputs, their_inputs, weights, create_graph=twice, allow_unused=True)
        except Exception:
            return
        try:
            got = weft.autograd.grad(
                my_outputs, my_inputs, [convert(w) for w in weights], create_graph=twice, allow_unused=True,
                retain_graph=True,
            )
        except Exception as error:
            if twice:  # the first alone
                return self.retry_first(sample, dtype, my_outputs, my_inputs, weights, expected, error)
            return self.fail("gradient", dtype, sample, f"{type(error).__name__}: {error}")
        if not self.compare_gradients("gradient", sample, dtype, got, expected) or not twice:
            return
        again = [(g, e) for g, e in zip(got, expected) if e is not None and e.requires_grad and g is not None]
        if not again:
            return
        weights = [torch.randn_like(e, memory_format=torch.contiguous_format) for _, e in again]
        try:
            expected = torch.autograd.grad([e for _, e in again], their_inputs, weights, allow_unused=True)
        except Exception:
            return
        try:
            mine = weft.autograd.grad(
                [g for g, _ in again if g.requires_grad], my_inputs,
                [convert(w) for w, (g, _) in zip(weights, again) if g.requires_grad], allow_unused=True,
            ) if any(g.requires_grad for g, _ in again) else [None] * len(my_inputs)
        except Exception as error:
            return self.fail("second gradient", dtype, sample, f"{type(error).__name__}: {error}")
        self.compare_gradients("second gradient", sample, dtype, mine, expected)

    def retry_first(self, sample, dtype, outputs, inputs, weights, expected, first_error):
        try:
            got = weft.autograd.grad(outputs, inputs, [convert(w) for w in weights], allow_unused=True)
        except Exception as error:
            return self.fail("gradient", dtype, sample, f"{type(error).__name__}: {error}")
        self.compare_gradients("gradient", sample, dtype, got, expected)
        self.counts["second gradient refused"] += 1
        self.refused[f"second gradient: {str(first_error).splitlines()[0][:100]}"] += 1

    def compare_gradients(self, kind, sample, dtype, got, expected):
        for mine, theirs in zip(got, expected):
            theirs = None if theirs is None or not theirs.any() and mine is None else theirs
            if theirs is None and (mine is None or not back(mine).any()):
                continue
            what = "a gradient expected, got none" if mine is None else "none expected" if theirs is None else difference(mine, theirs)
            if what:
                self.fail(kind, dtype, sample, what)
                return False
        self.counts[kind + " passed"] += 1
        return True

    def check_errors(self):
        if self.op.error_inputs_func is None:
            return
        try:
            mistakes = list(self.op.error_inputs("cpu"))
        except Exception:
            return
        for mistake in mistakes:
            sample = mistake.sample_input
            try:
                self.op(sample.input, *sample.args, **sample.kwargs)
            except Exception:
                pass
            else:
                continue
            try:
                self.function(convert(sample.input), *convert(list(sample.args)), **convert(sample.kwargs))
            except Exception:
                self.counts["error passed"] += 1
            else:
                self.fail("error", "", sample, f"nothing raised; PyTorch: {str(mistake.error_regex)[:100]}")


# What differs, and why. By entry: the kinds of failure that are known.
REASONS = {}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--op", default="", help="entries whose name it matches")
    parser.add_argument("--verbose", action="store_true", help="each failure, and what was refused")
    parser.add_argument("--markdown", action="store_true", help="the tables of docs/checked-against.md")
    options = parser.parse_args()
    entries = [Entry(op) for op in op_db if re.search(options.op, op.name)]
    entries = [entry for entry in entries if entry.function is not None]
    for entry in entries:
        print(entry.name, end=" ", file=sys.stderr, flush=True)
        entry.run()
        print(dict(entry.counts), file=sys.stderr, flush=True)
    report(entries, options)


def report(entries, options):
    total = Count()
    for entry in entries:
        total.update(entry.counts)
    failed = [entry for entry in entries if entry.failures]
    for entry in entries:
        seen = collections.Counter((kind, dtype if kind != "error" else "", re.sub(r"[\d.e+-]{4,}", "#", what)) for kind, dtype, what, _ in entry.failures)
        for (kind, dtype, what), count in seen.items():
            sample = next(s for k, d, w, s in entry.failures if k == kind)
            print(f"FAILED {entry.name}: {count} x {kind} {dtype}: {what}" + (f" [{sample}]" if options.verbose else ""))
        if options.verbose:
            for reason, count in entry.refused.most_common():
                print(f"refused {entry.name}: {count} x {reason}")
    clean = [entry for entry in entries if not entry.failures and entry.counts["value passed"] > 0]
    print(f"PyTorch {torch.__version__}: {len(entries)} entries, {len(clean)} without a failure")
    for key in sorted(total):
        print(f"  {key}: {total[key]}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
