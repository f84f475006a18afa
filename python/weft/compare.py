"""Functions that should do the same, timed in turns after their results were compared.

    from weft import compare

    print(compare.run({"weft": lambda: x.softmax(-1), "torch": lambda: torch.softmax(t, -1)}))

As a program, and as `weft compare --case FILE.py`, it runs a file that has

    functions = {"weft": ..., "torch": ...}     two or more; all take the same inputs
    inputs = (...)                              arguments of the functions, or a function that makes them; none by default
    convert = {"weft": weft.from_numpy}         by function, what its inputs pass through before; optional
    bound = 1e-5                                how far results may lie from the first function's, in units of its largest
                                                magnitude; optional
    synchronize = torch.cuda.synchronize        waits for a device; optional"""

import json
import math
import statistics
import sys
import time

from weft import _weft
from weft._weft import Error, Tensor

_LEAST_SAMPLE = 2e-3  # seconds


def _values(result):
    """What a function returned, as float64 tensors."""
    if isinstance(result, (tuple, list)):
        return [value for part in result for value in _values(part)]
    if result is None:
        return []
    if hasattr(result, "detach"):
        result = result.detach()
    if not isinstance(result, Tensor):
        result = _weft.as_tensor(result.cpu() if hasattr(result, "cpu") else result)
    return [result.detach().cpu().to(dtype=_weft.float64)]


def _distance(name, values, first, others):
    """The largest |a - b| over the largest |b|. Throws Error where shapes differ."""
    if len(values) != len(others):
        raise Error(f"compare: {name} gives {len(values)} results, {first} {len(others)}")
    worst = 0.0
    for a, b in zip(values, others):
        if a.shape != b.shape:
            raise Error(f"compare: {name} gives {tuple(a.shape)}, {first} {tuple(b.shape)}")
        if b.numel() == 0:
            continue
        same = (a == b) | (a.isnan() & b.isnan())
        difference = _weft.where(same, _weft.zeros_like(a), (a - b).abs()).max().item()
        finite = _weft.where(b.isfinite(), b.abs(), _weft.zeros_like(b)).max().item()
        distance = difference / finite if finite > 0 else difference
        worst = math.inf if math.isnan(distance) else max(worst, distance)
    return worst


class Comparison(list):
    """A dict for each function, in the order given: name, seconds (of each turn, the median of its samples), median,
    ratio (its median over the first function's of the same turn, the median over the turns) and distance."""

    def __str__(self):
        lines = [("function", "median", "+-", "ratio", "distance")]
        for row in self:
            spread = (max(row["seconds"]) - min(row["seconds"])) / row["median"]
            lines.append(
                (row["name"], _time(row["median"]), f"{spread:.0%}", f"{row['ratio']:.2f}", f"{row['distance']:.1e}")
            )
        widths = [max(len(line[i]) for line in lines) for i in range(5)]
        return "\n".join(
            "  ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(line, widths)))
            for line in lines
        )


def _time(seconds):
    for unit, scale in (("s", 1), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def run(functions, inputs=(), convert=None, bound=1e-5, pairs=5, seconds=0.15, synchronize=None):
    """Compares the functions' results, then times them in turns: a Comparison.

    functions: by name; the first is what the others are held against. inputs, convert, bound and synchronize as in the
    module's docstring. pairs: turns of each. seconds: of a turn at least; it is cut into samples of 2 ms at least. Throws
    Error when two results lie farther apart than the bound, naming both and the distance."""
    if len(functions) < 2:
        raise Error(f"compare: expected two or more functions, got {len(functions)}: {', '.join(functions)}")
    for name, function in functions.items():
        if not callable(function):
            raise Error(f"compare: {name} is no function but {type(function).__name__}")
    unknown = [name for name in convert or {} if name not in functions]
    if unknown:
        raise Error(f"compare: convert names {unknown[0]}, which is none of {', '.join(functions)}")
    inputs = inputs() if callable(inputs) else inputs
    inputs = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    wait = synchronize or (lambda: None)
    calls = {}
    for name, function in functions.items():
        through = (convert or {}).get(name)
        given = tuple(through(x) for x in inputs) if through else inputs
        calls[name] = lambda function=function, given=given: function(*given)

    first, values, distances = next(iter(functions)), {}, {}
    for name, call in calls.items():
        values[name] = _values(call())
        wait()
        distances[name] = _distance(name, values[name], first, values[first])
        if not distances[name] <= bound:
            raise Error(
                f"compare: {name} is {distances[name]:.3g} away from {first}, of its largest magnitude; the bound is {bound:g}"
            )
    values.clear()

    repeats = {}
    for name, call in calls.items():
        begin, count = time.perf_counter(), 0
        while count < 1 or (time.perf_counter() - begin < 0.1 and count < 1000):
            call()
            wait()
            count += 1
        repeats[name] = max(1, int(_LEAST_SAMPLE / max((time.perf_counter() - begin) / count, 1e-9)))
    turns = {name: [] for name in functions}
    for _ in range(pairs):
        for name, call in calls.items():
            samples, start = [], time.perf_counter()
            while not samples or time.perf_counter() - start < seconds:
                begin = time.perf_counter()
                for _ in range(repeats[name]):
                    call()
                wait()
                samples.append((time.perf_counter() - begin) / repeats[name])
            turns[name].append(statistics.median(samples))
    return Comparison(
        {
            "name": name,
            "seconds": turns[name],
            "median": statistics.median(turns[name]),
            "ratio": statistics.median(mine / theirs for mine, theirs in zip(turns[name], turns[first])),
            "distance": distances[name],
        }
        for name in functions
    )


_NAMES = ("functions", "inputs", "convert", "bound", "synchronize")


def run_file(path, pairs=5, seconds=0.15):
    """run() on what a file defines."""
    names = {"__name__": "weft_case", "__file__": path}
    with open(path) as file:
        exec(compile(file.read(), path, "exec"), names)
    if not isinstance(names.get("functions"), dict):
        raise Error(f"compare: {path} defines no dict of functions: functions = {{\"weft\": ..., \"torch\": ...}}")
    given = {name: names[name] for name in _NAMES if name in names}
    return run(given.pop("functions"), pairs=pairs, seconds=seconds, **given)


def _main(words):
    import argparse

    parser = argparse.ArgumentParser("weft compare --case", description="Times functions of a file beside each other.")
    parser.add_argument("file")
    parser.add_argument("--pairs", type=int, default=5, help="turns of each function")
    parser.add_argument("--seconds", type=float, default=0.15, help="that a turn lasts at least")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(words)
    if options.pairs < 1:
        parser.error(f"--pairs: expected 1 or more, got {options.pairs}")
    try:
        rows = run_file(options.file, options.pairs, options.seconds)
    except Error as error:
        print(f"weft: error: {error}", file=sys.stderr)
        return 1
    except ImportError as error:
        print(f"weft: error: {options.file}: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"case": options.file, "pairs": options.pairs, "functions": list(rows)}))
    else:
        print(rows)
        print(f"\n{options.pairs} turns; ratio: to {rows[0]['name']}, above 1 it takes longer; distance: from {rows[0]['name']}'s result")
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
