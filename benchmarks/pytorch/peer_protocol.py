"""What the peers of `weft compare` have in common: requests, warming up, and the clock.

    peer.py --threads N --device cpu|cuda --directory DIR

A peer reads one JSON object a line from standard input and answers each with one on standard output:

    {"do": "hello"}                                     versions, after a first addition
    {"do": "prepare", "side": "eager", "work": {...}}   makes the work and warms it up
    {"do": "time", "side": "eager", "seconds": 0.5}     {"times": [seconds of one iteration, ...]}
    {"do": "profile", "side": "eager"}                  {"rows": [{"name", "calls", "ms"}, ...]}
    {"do": "memory"}                                    {"peak_bytes": ...} of this process so far
    {"do": "drop"}                                      forgets all work

or with {"error": "..."}. It ends with its input. cli/compare/work.cc is the other half: it has the
same work under the same names, and its comments say what each is.
"""

import argparse
import gc
import json
import os
import sys
import time

# A sample lasts at least this long, or the clock and its reading would count.
LEAST_SAMPLE_SECONDS = 2e-3


class Peer:
    """Its methods are named like the kinds of work: they take the work and the side, and return a
    function without arguments, which ends when the work is done, and facts about it."""

    def __init__(self, arguments):
        self.threads = arguments.threads
        self.device_name = arguments.device
        self.directory = arguments.directory
        self.runs = {}  # by side: (function, seconds of an iteration)

    def synchronize(self):
        pass

    def hello(self, request):
        raise NotImplementedError

    def make(self, work, side):
        kind = getattr(self, work["kind"], None)
        if kind is None:
            raise ValueError(f"no {work['kind']} here")
        return kind(work, side)

    def prepare(self, request):
        side = request["side"]
        run, facts = self.make(request["work"], side)
        run()  # compiles, allocates, picks algorithms
        self.synchronize()
        self.runs[side] = (run, self.estimate(run))
        return facts

    def estimate(self, run):
        """Seconds of an iteration; warms it: another, or as many as last a tenth of a second."""
        start, count = time.perf_counter(), 0
        while count < 1 or (time.perf_counter() - start < 0.1 and count < 1000):
            run()
            self.synchronize()
            count += 1
        return (time.perf_counter() - start) / count

    def time(self, request):
        run, estimate = self.runs[request["side"]]
        repeats = max(1, int(LEAST_SAMPLE_SECONDS / max(estimate, 1e-9)))
        times, start = [], time.perf_counter()
        while not times or time.perf_counter() - start < request["seconds"]:
            begin = time.perf_counter()
            for _ in range(repeats):
                run()
            self.synchronize()
            times.append((time.perf_counter() - begin) / repeats)
        return {"times": times}

    def profile(self, request):
        return {"rows": []}

    def memory(self, request):
        with open("/proc/self/status") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return {"peak_bytes": int(line.split()[1]) * 1024}

    def drop(self, request):
        self.runs.clear()
        gc.collect()
        return {}


def serve(kind):
    """Answers requests by an object of that kind of Peer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--directory", required=True)
    # Answers alone go to the pipe; whatever else is printed goes to standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    peer = kind(parser.parse_args())
    names = ("hello", "prepare", "time", "profile", "memory", "drop")
    requests = {name: getattr(peer, name) for name in names}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = requests[request["do"]](request)
        except Exception as error:  # the other side decides what a failure means
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
