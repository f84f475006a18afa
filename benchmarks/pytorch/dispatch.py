"""What a tiny operation costs when it is called from Python, beside PyTorch.

    ./weft python benchmarks/pytorch/dispatch.py [--json]        (a python3 that has torch)

Both take turns, in rounds of some milliseconds; a figure is the median of the rounds. One thread each."""

import json
import statistics
import sys
import time

import weft

CASES = {
    "x + y, 4 elements": lambda lib, x: (lambda: x + x),
    "x * 2.0": lambda lib, x: (lambda: x * 2.0),
    "x.exp()": lambda lib, x: (lambda: x.exp()),
    "x.sum()": lambda lib, x: (lambda: x.sum()),
    "x.reshape(2, 2)": lambda lib, x: (lambda: x.reshape(2, 2)),
    "x[1:3]": lambda lib, x: (lambda: x[1:3]),
    "x[0].item()": lambda lib, x: (lambda: x[0].item()),
    "x.shape": lambda lib, x: (lambda: x.shape),
    "matmul 4 x 4": lambda lib, x: (lambda m=lib.ones(4, 4): m @ m),
    "x += 1": lambda lib, x: (lambda y=x.clone(): y.add_(1)),
    "(p * p).sum().backward()": lambda lib, x: (
        lambda p=lib.ones(4, requires_grad=True): (p * p).sum().backward()
    ),
}
ROUNDS, CALLS = 41, 2000


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
    for name, make in CASES.items():
        calls = [make(weft, weft.ones(4)), make(torch, torch.ones(4))]
        times = [[seconds_per_call(call) for call in calls] for _ in range(ROUNDS)][1:]
        ours, theirs = (statistics.median(column) for column in zip(*times))
        ratio = statistics.median(a / b for a, b in times)
        if "--json" in sys.argv:
            print(json.dumps({"case": name, "weft_s": ours, "torch_s": theirs, "ratio": ratio}))
        else:
            print(f"{name:28}{ours * 1e9:7.0f} ns{theirs * 1e9:13.0f} ns{ratio:12.2f}")


main()
