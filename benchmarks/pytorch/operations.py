"""What the operations of `import weft` take beside PyTorch's, forward alone and with the gradient.

    ./weft python benchmarks/pytorch/operations.py [--op REGEX] [--threads N] [--json]      (a python3 that has torch)

One function serves both libraries, on the same numbers; results are compared first, then both take turns (weft.compare). A
ratio above 1 says that Weft takes longer. Inputs are float32, of the size of a layer's activations."""

import argparse
import json
import os
import re
import sys

ROWS, COLUMNS = 1024, 768  # of a matrix: 3 MB


def permutations(torch):
    """Rows without equal numbers, whose places each library may order as it likes."""
    return torch.rand(ROWS, COLUMNS).argsort(-1).float()


def cases():
    """name: (function of the library, its functional and tensors; shapes, or what torch makes of them; has a gradient)."""
    matrix, image, half = (ROWS, COLUMNS), (8, 32, 56, 56), (ROWS, COLUMNS // 2)
    unary = "sin cos sinh cosh tan asinh atan log1p expm1 exp2"
    positive = "log2 log10 acosh"
    bounded = "asin acos atanh"
    table = {name: (lambda l, F, x, f=name: getattr(l, f)(x), (matrix,), True) for name in unary.split()}
    table |= {name: (lambda l, F, x, f=name: getattr(l, f)(x.abs() + 1.5), (matrix,), True) for name in positive.split()}
    table |= {name: (lambda l, F, x, f=name: getattr(l, f)(x.clamp(-0.9, 0.9)), (matrix,), True) for name in bounded.split()}
    for name in "softplus elu leaky_relu hardswish".split():
        table[name] = (lambda l, F, x, f=name: getattr(F, f)(x), (matrix,), True)
    table |= {
        "atan2": (lambda l, F, x, y: l.atan2(x, y), (matrix, matrix), True),
        "remainder": (lambda l, F, x: l.remainder(x, l.tensor(0.7)), (matrix,), False),
        "floor_divide": (lambda l, F, x: l.floor_divide(x, l.tensor(0.7)), (matrix,), False),
        "isfinite": (lambda l, F, x: l.isfinite(x), (matrix,), False),
        "masked_fill": (lambda l, F, x: x.masked_fill(x > 0, 1.0), (matrix,), True),
        "flip": (lambda l, F, x: l.flip(x, (0, 1)), (matrix,), True),
        "roll": (lambda l, F, x: l.roll(x, (3, 5), (0, 1)), (matrix,), True),
        "tril": (lambda l, F, x: l.tril(x), (matrix,), True),
        "pad": (lambda l, F, x: F.pad(x, (1, 1, 1, 1)), (image,), True),
        "pad reflect": (lambda l, F, x: F.pad(x, (1, 1, 1, 1), mode="reflect"), (image,), True),
        "repeat": (lambda l, F, x: x.repeat(2, 2), (half,), True),
        "sort": (lambda l, F, x: l.sort(x, -1)[0], (matrix,), True),
        "sort of one line": (lambda l, F, x: l.sort(x.flatten(), -1)[0], (matrix,), True),
        "argsort": (lambda l, F, x: l.argsort(x, -1), (permutations,), False),
        "topk": (lambda l, F, x: l.topk(x, 10, -1)[0], (matrix,), True),
        "cumsum": (lambda l, F, x: l.cumsum(x, -1), (matrix,), True),
        "unique": (lambda l, F, x: l.unique((x * 20).round()), (matrix,), False),
        "unique of rows": (lambda l, F, x: l.unique((x[:, :4] * 2).round(), dim=0), (matrix,), False),
        "nonzero": (lambda l, F, x: (x > 0).nonzero(), (matrix,), False),
        "index of rows": (lambda l, F, x: x[l.arange(ROWS) // 2], (matrix,), True),
        "index by a mask": (lambda l, F, x: x[x > 0], (matrix,), True),
        "any": (lambda l, F, x: (x > 9).any(-1), (matrix,), False),
        "std": (lambda l, F, x: l.std(x, -1), (matrix,), True),
        "norm": (lambda l, F, x: l.norm(x, 2, -1), (matrix,), True),
        "logsumexp": (lambda l, F, x: l.logsumexp(x, -1), (matrix,), True),
        "diagonal": (lambda l, F, x: l.diagonal(x).clone(), (matrix,), True),
        "outer": (lambda l, F, x, y: l.outer(x, y), ((ROWS,), (COLUMNS,)), True),
        "einsum": (lambda l, F, x, y: l.einsum("bij,bkj->bik", x, y), ((12, 197, 64), (12, 197, 64)), True),
        "rms_norm": (lambda l, F, x, w: F.rms_norm(x, (COLUMNS,), w), (matrix, (COLUMNS,)), True),
        "group_norm": (lambda l, F, x, w: F.group_norm(x, 8, w), (image, (32,)), True),
        "instance_norm": (lambda l, F, x: F.instance_norm(x), (image,), True),
        "conv1d": (lambda l, F, x, w: F.conv1d(x, w, padding=1), ((8, 64, 512), (64, 64, 3)), True),
        "conv_transpose2d": (lambda l, F, x, w: F.conv_transpose2d(x, w, stride=2), ((4, 32, 28, 28), (32, 16, 2, 2)), True),
        "max_pool2d": (lambda l, F, x: F.max_pool2d(x, 3, 2, 1), (image,), True),
        "max_pool2d dilated": (lambda l, F, x: F.max_pool2d(x, 3, 2, 1, dilation=2, ceil_mode=True), (image,), True),
        "avg_pool2d": (lambda l, F, x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), (image,), True),
        "adaptive_avg_pool2d": (lambda l, F, x: F.adaptive_avg_pool2d(x, (7, 7)), (image,), True),
        "interpolate": (lambda l, F, x: F.interpolate(x, scale_factor=2.0), ((4, 32, 28, 28),), True),
        "interpolate bilinear": (lambda l, F, x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), ((4, 32, 28, 28),), True),
        "nll_loss": (lambda l, F, x: F.nll_loss(x, l.arange(ROWS) // 2), (matrix,), True),
        "kl_div": (lambda l, F, x, y: F.kl_div(x, y.abs(), reduction="sum"), (matrix, matrix), True),
        "smooth_l1_loss": (lambda l, F, x, y: F.smooth_l1_loss(x, y), (matrix, matrix), True),
        "cosine_similarity": (lambda l, F, x, y: F.cosine_similarity(x, y), (matrix, matrix), True),
        "attention, added mask": (
            lambda l, F, x, m: F.scaled_dot_product_attention(x, x, x, attn_mask=m.detach()), ((4, 12, 197, 64), (197, 197)), True,
        ),
        "attention, bool mask": (
            lambda l, F, x, m: F.scaled_dot_product_attention(x, x, x, attn_mask=m > 0), ((4, 12, 197, 64), (197, 197)), True,
        ),
        "attention, learnt mask": (
            lambda l, F, x, m: F.scaled_dot_product_attention(x, x, x, attn_mask=m), ((4, 12, 197, 64), (197, 197)), True,
        ),
    }
    return table


def with_gradient(library, functional, function):
    def call(*inputs):
        given = [x.detach().requires_grad_() for x in inputs]
        y = function(library, functional, *given)
        y.backward(y.detach().sigmoid())  # (that of sum(y y) is 0 behind a norm)
        return [y.detach()] + [x.grad for x in given if x.grad is not None]

    return call


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", default="", help="cases whose name it matches")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of each library")
    parser.add_argument("--pairs", type=int, default=3, help="turns of each")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    import weft
    import weft.compare

    try:
        import torch
    except ImportError:
        sys.exit("operations: error: this python3 has no torch; put one that has it first on the path")
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    width = max(len(name) for name in cases())
    if not options.json:
        print(f"{'':{width}}  {'forward':>22}  {'with the gradient':>22}")
        print(f"{'':{width}}  {'weft ms':>9}{'ratio':>13}  {'weft ms':>9}{'ratio':>13}")
    for name, (function, shapes, has_gradient) in cases().items():
        if not re.search(options.op, name):
            continue
        inputs = [shape(torch) if callable(shape) else torch.randn(shape) for shape in shapes]
        row = {"case": name}
        for kind in ("forward", "gradient") if has_gradient else ("forward",):
            make = with_gradient if kind == "gradient" else lambda l, F, f: lambda *x: f(l, F, *x)
            functions = {
                "torch": make(torch, torch.nn.functional, function),
                "weft": make(weft, weft.nn.functional, function),
            }
            rows = weft.compare.run(
                functions, inputs, convert={"weft": weft.from_dlpack}, bound=1e-4, pairs=options.pairs, seconds=0.04
            )
            row[kind] = {"weft_s": rows[1]["median"], "ratio": rows[1]["ratio"]}
        if options.json:
            print(json.dumps(row), flush=True)
            continue
        cells = (row.get(kind) for kind in ("forward", "gradient"))
        print(f"{name:{width}}" + "".join(
            f"  {c['weft_s'] * 1e3:9.3f}{c['ratio']:13.2f}" if c else "" for c in cells
        ), flush=True)


if __name__ == "__main__":
    main()
