"""Weft held against PyTorch's own test data: its OpInfo entries, with all their samples.

    opinfo.py [--op REGEX] [--verbose]

An entry of torch.testing._internal.common_methods_invocations names an operator, its dtypes, and makes samples of its
arguments. For each whose operator Weft has, every sample in every dtype that both have goes through both, and compared
are

    values              with shapes and dtypes
    gradients           float32 and float64, of a random combination of the results
    second gradients    float64, of a random combination of the first
    errors              what PyTorch says is a mistake is to raise

A sample that Weft refuses with an exception is no failure, and is counted with what it said; a value that differs is one,
unless REASONS has it. A result, or a gradient in float32, may differ from PyTorch's where it lies within float32's tolerance
of float64's (and half a unit of a narrow format), or as near as PyTorch's. The exit status is 1 where a failure has no
reason."""

import argparse
import collections
import math
import re
import sys
import warnings

import weft

warnings.simplefilter("ignore")
try:
    import torch
    from torch.testing._internal.common_methods_invocations import op_db
except ImportError as error:  # PyTorch's tests need expecttest, too
    print(f"SKIPPED: PyTorch's OpInfo: {error}; pip install torch expecttest")
    sys.exit(0)

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

F = weft.nn.functional


def refuse(why):
    raise weft.Error(why)


def only(function, **usual):
    """The function, for samples that leave these arguments at their usual values."""

    def call(*args, **kwargs):
        for name, value in usual.items():
            given = kwargs.pop(name, value)
            if given != value:
                refuse(f"{name}={given!r}")
        return function(*args, **kwargs)

    return call


def avg_pool2d(x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
    if divisor_override is not None:
        refuse("divisor_override")
    return F.avg_pool2d(x, kernel_size, stride or None, padding, ceil_mode, count_include_pad)


def put(x, indices, values, accumulate=False):
    if accumulate:
        refuse("accumulate")
    y = x.clone()
    y[tuple(indices)] = values
    return y


def bools(function):
    def call(a, b):
        if any(getattr(t, "dtype", weft.bool) != weft.bool for t in (a, b)):
            refuse("of integers")
        return function(a, b)

    return call


def eye(n, m=None, dtype=None, **more):
    return weft.eye(n, m, dtype=dtype)


def like(function):
    return lambda x, dtype=None, **more: function(x, dtype=dtype)


def as_dtype(dtype):
    return only(lambda x: x.to(dtype=dtype), memory_format=torch.preserve_format)


def divide(a, b, rounding_mode=None):
    if rounding_mode == "floor":
        return a.floor_divide(b)
    return refuse("rounding_mode=trunc") if rounding_mode else a / b


def copied(function):
    return lambda *args, **kwargs: function(*args, **kwargs).clone()


# Entries whose operator Weft writes otherwise: under another name, with fewer arguments, as an operator of Python's.
# None: it has none.
ADAPTERS = {
    "where": lambda x, condition, other: weft.where(condition, x, other),
    "nn.functional.avg_pool2d": avg_pool2d,
    "sort": only(lambda x, *a, **k: weft.sort(x, *a, **{n: v for n, v in k.items() if n != "stable"})),
    "argsort": only(lambda x, *a, **k: weft.argsort(x, *a, **{n: v for n, v in k.items() if n != "stable"})),
    "topk": only(weft.topk, sorted=True),
    "eye": eye,
    "einsum": lambda operands, equation: weft.einsum(equation, *operands),
    "meshgrid": lambda *tensors, indexing="ij": weft.meshgrid(
        *(tensors[0] if isinstance(tensors[0], (list, tuple)) else tensors), indexing=indexing
    ),
    "div": divide,
    "true_divide": lambda a, b: a / b,
    "clamp": lambda x, min=None, max=None: weft.clamp(x, min, max),
    "clamp_max": lambda x, m: weft.minimum(x, m) if isinstance(m, weft.Tensor) else weft.clamp(x, max=m),
    "clamp_min": lambda x, m: weft.maximum(x, m) if isinstance(m, weft.Tensor) else weft.clamp(x, min=m),
    "sum_to_size": lambda x, *shape: weft.sum_to_size(x, shape[0] if len(shape) == 1 else shape),
    "mv": lambda a, b: weft.matmul(a, b),
    "inner": lambda a, b: weft.matmul(a, b) if a.ndim == b.ndim == 1 else refuse("not of two vectors"),
    "__rmatmul__": lambda a, b: weft.matmul(b, a),
    "__rdiv__": lambda a, b: b / a,
    "rsub": lambda a, b, alpha=1: b - a * alpha if alpha != 1 else b - a,
    "broadcast_to": lambda x, shape: x.expand(shape),
    "logical_xor": bools(lambda a, b: a.ne(b)),
    "bitwise_and": bools(lambda a, b: a & b),
    "bitwise_or": bools(lambda a, b: a | b),
    "bitwise_xor": bools(lambda a, b: a ^ b),
    "bitwise_not": lambda x: ~x,
    "ravel": lambda x: x.flatten(),
    "reshape_as": lambda x, y: x.reshape(y.shape),
    "fill": lambda x, value: x.clone().fill_(value),
    "index_put": put,
    "argwhere": weft.nonzero,
    "fliplr": lambda x: x.flip(1),
    "flipud": lambda x: x.flip(0),
    "hstack": lambda xs: (weft.cat if xs[0].ndim else weft.stack)(xs, 1 if xs[0].ndim > 1 else 0),
    "__getitem__": lambda x, index: x[index],
    "T": lambda x: x.T,
    "mT": lambda x: x.mT,
    "linalg.vector_norm": only(
        lambda x, ord=2, dim=None, keepdim=False, **k: weft.norm(x, ord, dim, keepdim, **k), dtype=None
    ),
    "linalg.diagonal": lambda x, offset=0, dim1=-2, dim2=-1: x.diagonal(offset, dim1, dim2),
    "norm": only(weft.norm, dtype=None),
    "nn.functional.upsample_nearest": lambda x, size=None, scale_factor=None: F.interpolate(x, size, scale_factor),
    "nn.functional.upsample_bilinear": lambda x, size=None, scale_factor=None: F.interpolate(
        x, size, scale_factor, mode="bilinear", align_corners=True
    ),
    # What is dropped is drawn by each library's own generator.
    "nn.functional.scaled_dot_product_attention": only(F.scaled_dot_product_attention, dropout_p=0.0),
    "nn.functional.interpolate": only(F.interpolate, antialias=False),
    "bfloat16": as_dtype(weft.bfloat16),
    "bool": as_dtype(weft.bool),
    "byte": as_dtype(weft.uint8),
    "double": as_dtype(weft.float64),
    "float": as_dtype(weft.float32),
    "half": as_dtype(weft.float16),
    "int": as_dtype(weft.int32),
    "long": as_dtype(weft.int64),
    "new_zeros": lambda x, size, dtype=None, **more: weft.zeros(size, dtype=dtype or x.dtype),
    "new_ones": lambda x, size, dtype=None, **more: weft.ones(size, dtype=dtype or x.dtype),
    "new_full": lambda x, size, value, dtype=None, **more: weft.full(size, value, dtype=dtype or x.dtype),
    "empty_like": like(weft.empty_like),
    "zeros_like": like(weft.zeros_like),
    "ones_like": like(weft.ones_like),
    "alias_copy": lambda x: x.clone(),
    "unsqueeze_copy": copied(weft.unsqueeze),
    "transpose_copy": copied(weft.transpose),
    "permute_copy": copied(weft.permute),
    "expand_copy": copied(weft.expand),
    "diagonal_copy": copied(weft.diagonal),
    "narrow_copy": copied(weft.narrow),
    "squeeze_copy": copied(weft.squeeze),
    "t_copy": copied(weft.t),
    "sparse.mm": None,
}
# Results are random, or memory as it was found: their shapes and dtypes are compared.
RANDOM = {"empty", "empty_like", "randn", "rand_like", "randn_like", "nn.functional.dropout"}
# Results are places of equals, which PyTorch takes in any order: what lies there is compared.
PLACES = {
    "sort": lambda args, kwargs: args[0] if args else kwargs.get("dim", -1),
    "argsort": lambda args, kwargs: args[0] if args else kwargs.get("dim", -1),
    "topk": lambda args, kwargs: args[1] if len(args) > 1 else kwargs.get("dim", -1),
}


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


def is_as_near(ours, theirs, exact):
    """Whether our results lie within float32's tolerance of those in float64, and half a unit of their own format; or as
    near as PyTorch's."""
    if exact is None:
        return False
    relative, absolute = TOLERANCES[torch.float32]
    for o, t, e in zip(ours, theirs, exact):
        if e is None or t is None or not e.is_floating_point() or e.shape != t.shape:
            return False
        error = (back(o).double() - e).abs()
        rounding = torch.finfo(t.dtype).eps / 2 if t.dtype in (torch.float16, torch.bfloat16) else 0
        is_right = (error <= (rounding + relative) * e.abs() + absolute).all()
        if not is_right and not error.max() <= (t.double() - e).abs().max():
            return False
    return True


class Entry:
    def __init__(self, op):
        self.op, self.name = op, op.name + (f" {op.variant_test_name}" if op.variant_test_name else "")
        self.function = function_of(op.name)
        self.counts = collections.Counter()
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
            kwargs = {name: value for name, value in kwargs.items() if name != "device"}
            ours = self.function(given, *args, **kwargs)
        except Exception as error:
            message = str(error).splitlines()[0] if str(error) else ""
            self.refused[f"{type(error).__name__}: {message[:100]}"] += 1
            self.counts["refused"] += 1
            return
        if self.op.name in RANDOM:
            theirs, ours = torch.empty_like(theirs).zero_(), weft.zeros_like(ours)
        if self.op.name in PLACES and sample.input.dim():
            theirs, ours = self.values_at(theirs, ours, sample)
        what = difference(ours, theirs)
        if what and what.startswith("values") and dtype.is_floating_point and is_as_near(
            tensors(ours), tensors(theirs), self.exact(sample)
        ):
            what = None
        if what:
            return self.fail("value", dtype, sample, what)
        self.counts["value passed"] += 1
        if differentiable:
            self.check_gradients(sample, dtype, theirs, ours, (given, args, kwargs))

    def values_at(self, theirs, ours, sample):
        """The results with what lies at their places in the input, instead of the places."""
        dim = PLACES[self.op.name](sample.args, sample.kwargs)

        def at(places):
            return torch.take_along_dim(sample.input.detach(), places.detach(), dim)

        if isinstance(theirs, torch.Tensor):
            return at(theirs), weft.from_dlpack(at(back(ours)))
        return [theirs[0], at(theirs[1])], [ours[0], weft.from_dlpack(at(back(ours[1])))]

    def exact(self, sample, weights=None):
        """PyTorch's results in float64 or, with the gradients of these, those of the arguments; None where it has none."""

        def wide(x):
            if not isinstance(x, torch.Tensor) or not x.is_floating_point():
                return x
            return x.detach().double().requires_grad_(x.requires_grad)

        try:
            sample = sample.transform(wide)
            results = tensors(self.op(sample.input, *sample.args, **sample.kwargs))
            if weights is None:
                return results
            outputs = [t for t in results if t.requires_grad]
            arguments = tensors([sample.input, list(sample.args), list(sample.kwargs.values())])
            inputs = [t for t in arguments if t.requires_grad]
            return torch.autograd.grad(outputs, inputs, [w.double() for w in weights], allow_unused=True)
        except Exception:
            return None

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
        if not self.compare_gradients("gradient", sample, dtype, got, expected, weights) or not twice:
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

    def compare_gradients(self, kind, sample, dtype, got, expected, weights=None):
        """With the weights of the results, float32's may differ where they lie as near to float64's."""
        for i, (mine, theirs) in enumerate(zip(got, expected)):
            theirs = None if theirs is None or not theirs.any() and mine is None else theirs
            if theirs is None and (mine is None or not back(mine).any()):
                continue
            what = "a gradient expected, got none" if mine is None else "none expected" if theirs is None else difference(mine, theirs)
            if what and what.startswith("values") and dtype == torch.float32 and weights is not None:
                exact = self.exact(sample, weights)
                if exact is not None and is_as_near([mine], [theirs], [exact[i]]):
                    what = None
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


# What differs, and why: by a pattern of entries, a kind of failure and a pattern of what it says.
REASONS = (
    (r"ceil|floor|round|sign|trunc|div", "gradient", "has no history", "its gradient is zero everywhere, and Weft records none"),
    (r"norm|linalg.vector_norm", "gradient", "has no history", "the number of elements other than 0 has no gradient"),
    (r"nn.functional.cross_entropy", "gradient", "soft labels have no gradient", "Weft says so"),
    (r"nn.functional.cross_entropy", "value", "weft.float32", "losses are in float32"),
    (r"all|any", "value", "torch.uint8 expected, got weft.bool", "tests are bool"),
    (r"square", "value", "got weft.bool", "of bool Weft's is bool"),
    (r"sum_to_size", "value", "torch.int64 expected", "PyTorch's is int64 even where it sums nothing"),
    (r"einsum", "value", "got weft.int64", "sums of integers are in int64"),
    (r"arange|linspace", "value", "values", "PyTorch truncates the ends and the step of integers first"),
    (r"full_like", "value", "values", "a number below 0 is 0 in uint8"),
    (r"nn.functional.(group|instance)_norm", "value", "values", "bfloat16 is rounded before the weights, too"),
    (r"nn.functional.conv_transpose2d", "value", "values", "float16 is rounded before the bias is added, too"),
    (r"nn.functional.group_norm", "error", "greater than 0", "what has no elements is left as it is"),
    (r"narrow", "error", "integral Tensor", "True counts as 1, as in Python"),
    (
        r"__r\w+__|rsub|atan2|maximum|minimum|logical_\w+|bitwise_\w+",
        "error",
        "nothing raised",
        "a number may stand beside a tensor, or beside a number",
    ),
)


def reason_of(entry, kind, what):
    for names, its_kind, pattern, reason in REASONS:
        if kind == its_kind and re.fullmatch(names, entry.op.name) and re.search(pattern, what):
            return reason
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--op", default="", help="entries whose name it matches")
    parser.add_argument("--verbose", action="store_true", help="each entry's counts, and what it refused")
    options = parser.parse_args()
    entries = [Entry(op) for op in op_db if re.search(options.op, op.name)]
    entries = [entry for entry in entries if entry.function is not None]
    for entry in entries:
        if sys.stderr.isatty():
            print(f"\r\033[K{entry.name}", end="", file=sys.stderr, flush=True)
        entry.run()
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    sys.exit(report(entries, options.verbose))


def report(entries, verbose):
    """Prints what was found; returns the exit status."""
    total, known, unknown = collections.Counter(), collections.Counter(), 0
    for entry in entries:
        total.update(entry.counts)
        if verbose:
            print(f"{entry.name}: {dict(entry.counts)}")
            for why, count in entry.refused.most_common():
                print(f"    refused {count} times: {why}")
        for kind, dtype, what, sample in entry.failures:
            why = reason_of(entry, kind, what)
            if why:
                known[entry.op.name, kind, why] += 1
                continue
            unknown += 1
            print(f"FAILED {entry.name}: {kind} {dtype}: {what} [{sample}]")
    tried = [entry for entry in entries if entry.counts["value passed"] > 0]
    clean = [entry for entry in tried if not entry.failures]
    if known:
        print("Known differences:")
    for (name, kind, why), count in known.items():
        print(f"  {name}: {kind}, {count} samples: {why}")
    print(f"PyTorch {torch.__version__}, {len(tried)} entries of its OpInfo; {len(clean)} of them without a difference")
    for kind in ("value", "gradient", "second gradient", "error"):
        print(f"  {kind}s: {total[kind + ' passed']} passed, {total[kind + ' failed']} failed")
    print(f"  refused: {total['refused']}")
    print(f"{sum(total[k] for k in total if k.endswith(' passed'))} passed, {unknown} failed")
    return 1 if unknown else 0


if __name__ == "__main__":
    main()
