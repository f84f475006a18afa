"""What a tiny operation costs from C++, beside PyTorch's own C++ API.

    bazel build --config=host //benchmarks/pytorch:dispatch_calls
    python3 benchmarks/pytorch/dispatch_cpp.py [--weft PROGRAM] [--compiler g++] [--json]

One source, benchmarks/pytorch/dispatch_calls.cc, is a program of Weft's and, compiled here against the headers and
libraries of this python3's torch, one of PyTorch's. The two take turns, in rounds of half a millisecond; times are the
medians of the rounds, and so is the ratio of each round's; `best` is the ratio of the two best rounds, which nobody
interrupted. Neither side records what nobody asks a gradient of (NoGrad, NoGradGuard). One thread each."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROUNDS = 301


def compile_with_torch(compiler, directory):
    import torch
    from torch.utils import cpp_extension

    program = str(pathlib.Path(directory) / "dispatch_torch")
    command = [compiler, "-std=c++20", "-O2", "-DNDEBUG", "-DWEFT_BESIDE_TORCH", str(HERE / "dispatch_calls.cc"), "-o", program]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    command += [f"-isystem{path}" for path in cpp_extension.include_paths()]
    for path in cpp_extension.library_paths():
        command += [f"-L{path}", f"-Wl,-rpath,{path}"]
    subprocess.run(command + ["-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10"], check=True)
    return program, torch.__version__


class Side:
    """A program that answers a case's name with the nanoseconds of a call."""

    def __init__(self, program):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self.cases = self.process.stdout.readline().strip().split(";")

    def time(self, case):
        print(case, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait(timeout=10)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weft", default="bazel-bin/benchmarks/pytorch/dispatch_calls", help="Weft's program")
    parser.add_argument("--compiler", default="g++", help="for PyTorch's program")
    parser.add_argument("--json", action="store_true", help="a JSON object for each case")
    arguments = parser.parse_args()
    if not os.access(arguments.weft, os.X_OK):
        sys.exit(f"dispatch_cpp: error: no program {arguments.weft}: build //benchmarks/pytorch:dispatch_calls")
    with tempfile.TemporaryDirectory() as directory:
        try:
            program, version = compile_with_torch(arguments.compiler, directory)
        except ImportError:
            sys.exit("dispatch_cpp: error: this python3 has no torch; put one that has it first on the path")
        sides = [Side(arguments.weft), Side(program)]
        if not arguments.json:
            print(f"{'':32}{'weft':>10}{'torch ' + version:>20}{'torch/weft':>12}{'best':>8}")
        for case in sides[0].cases:
            times = [[side.time(case) for side in sides] for _ in range(ROUNDS)][1:]
            ours, theirs = (statistics.median(column) for column in zip(*times))
            ratio = statistics.median(b / a for a, b in times)
            best = min(b for _, b in times) / min(a for a, _ in times)
            if arguments.json:
                print(json.dumps({"case": case, "weft_ns": ours, "torch_ns": theirs, "ratio": ratio, "best": best}))
            else:
                print(f"{case:32}{ours:7.0f} ns{theirs:17.0f} ns{ratio:12.2f}{best:8.2f}", flush=True)
        for side in sides:
            side.end()


main()
