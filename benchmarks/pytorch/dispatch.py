"""What a tiny operation costs when it is called from Python, beside PyTorch.

    ./weft python benchmarks/pytorch/dispatch.py [--json]        (a python3 that has torch)

Both take turns, in rounds of some milliseconds; a figure is the median of the rounds. One thread each."""

import json
import statistics
import sys
import time

import weft

OPERATIONS = {
    "x + y, 4 elements": lambda x, m: x + x,
    "x * y": lambda x, m: x * x,
    "matmul 4 x 4": lambda x, m: m @ m,
    "x.relu()": lambda x, m: x.relu(),
    "x.sum()": lambda x, m: x.sum(),
    "x.reshape(2, 2)": lambda x, m: x.reshape(2, 2),
    "x[1:3]": lambda x, m: x[1:3],
}
OTHERS = {
    "x * 2.0": lambda lib, x: (lambda: x * 2.0),
    "x.exp()": lambda lib, x: (lambda: x.exp()),
    "x[0].item()": lambda lib, x: (lambda: x[0].item()),
    "x.shape": lambda lib, x: (lambda: x.shape),
    "x += 1": lambda lib, x: (lambda y=x.clone(): y.add_(1)),
    "(p * p).sum().backward()": lambda lib, x: (
        lambda p=lib.ones(4, requires_grad=True): (p * p).sum().backward()
    ),
}
ROUNDS, CALLS = 41, 2000


def cases():
    """(name, function of a library that makes a function to time), of each operation forward and recorded."""
    for requires_grad, suffix in ((False, ""), (True, ", recorded")):
        for name, call in OPERATIONS.items():

            def make(lib, call=call, requires_grad=requires_grad):
                x, m = (lib.ones(*shape, requires_grad=requires_grad) for shape in ((4,), (4, 4)))
                return lambda: call(x, m)

            yield name + suffix, make
    for name, make in OTHERS.items():
        yield name, lambda lib, make=make: make(lib, lib.ones(4))


def seconds_per_call(function):
    begin = time.perf_counter()
    for _ in range(CALLS):
        function()
    return (time.perf_counter() - begin) / CALLS


def main():
    try:
        import torch
    except ImportError:
        sys.exit("dispatch: error: this python3 has no torch; put one that has it first on the path")
    torch.set_num_threads(1)
    if "--json" not in sys.argv:
        print(f"{'':28}{'weft':>10}{'torch ' + torch.__version__:>16}{'weft/torch':>12}")
    for name, make in cases():
        calls = [make(weft), make(torch)]
        times = [[seconds_per_call(call) for call in calls] for _ in range(ROUNDS)][1:]
        ours, theirs = (statistics.median(column) for column in zip(*times))
        ratio = statistics.median(a / b for a, b in times)
        if "--json" in sys.argv:
            print(json.dumps({"case": name, "weft_s": ours, "torch_s": theirs, "ratio": ratio}))
        else:
            print(f"{name:28}{ours * 1e9:7.0f} ns{theirs * 1e9:13.0f} ns{ratio:12.2f}")


main()
