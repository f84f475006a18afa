#!/usr/bin/env python3
"""Trains the same model in several precisions over several seeds, and compares where they end.

    bazel build //cli:weft
    benchmarks/precision/runs.py --json runs.json -- --epochs 2 --limit-batches 60

Everything after -- goes to `weft train`, the same for every precision. A setting is a precision,
optionally with more options behind it: fp16+--loss-scale+none, bf16+--matmul-numerics+h100.
A setting agrees with fp32 in a figure when its mean over the seeds differs from fp32's by no more
than fp32's own seeds differ from each other. The accuracy is of the test images, or of the
validation images where the data has no test. With --json a run that the file has is not made again.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile


def train(weft, setting, seed, arguments):
    precision, *options = setting.split("+")
    with tempfile.TemporaryDirectory() as folder:
        command = [weft, "train", "--json", "--output", os.path.join(folder, "run"),
                   "--precision", precision, "--seed", str(seed), *options, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    steps = [e for e in events if e["event"] == "step"]
    last = events[-1] if events else {}
    if done.returncode != 0 or last.get("event") != "done":
        return {"setting": setting, "seed": seed, "error": done.stderr.strip()}
    scales = [s["loss_scale"] for s in steps if "loss_scale" in s]
    return {
        "setting": setting,
        "seed": seed,
        "train_loss": last["loss"],
        "accuracy": last["val_accuracy" if last["test_accuracy"] is None else "test_accuracy"],
        "seconds": last["seconds"],
        "losses": [s["loss"] for s in steps],
        "skipped": sum(s.get("skipped", False) for s in steps),
        "loss_scale": [min(scales), max(scales)] if scales else None,
    }


def spread(runs, figure):
    values = [r[figure] for r in runs]
    return min(values), statistics.mean(values), max(values)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weft", default="bazel-bin/cli/weft")
    parser.add_argument("--settings", default="fp32,tf32,bf16,fp16,fp16+--loss-scale+none")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--json", help="write every run to this file")
    parser.add_argument("arguments", nargs="*", help="of weft train, after --")
    options = parser.parse_args()
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

    table = {}
    if options.json and os.path.exists(options.json):
        with open(options.json) as file:
            table = json.load(file)
    for seed in options.seeds.split(","):
        # Precisions in turn, so that all see the same machine.
        for setting in options.settings.split(","):
            if any(run["seed"] == int(seed) for run in table.get(setting, [])):
                continue
            run = train(options.weft, setting, int(seed), options.arguments)
            table.setdefault(setting, []).append(run)
            print(f"{setting} seed {seed}: " + run.get("error", f"{run.get('accuracy')}"),
                  file=sys.stderr, flush=True)
            if options.json:
                with open(options.json, "w") as file:
                    json.dump(table, file)

    figures = ("accuracy", "train_loss")
    base = {f: spread(table["fp32"], f) for f in figures} if "fp32" in table else {}

    def agrees(runs, figure):
        low, mean, high = base[figure]
        return abs(spread(runs, figure)[1] - mean) <= high - low

    print("| setting | accuracy (low, mean, high) | train loss (low, mean, high) | skipped | "
          "seconds | within fp32's spread |")
    print("|---|---|---|---|---|---|")
    for setting, runs in table.items():
        failed = [r for r in runs if "error" in r]
        if failed:
            print(f"| {setting} | {failed[0]['error']} | | | | |")
            continue
        accuracy, loss = (spread(runs, f) for f in figures)
        agreeing = [f for f in figures if base and agrees(runs, f)]
        print(f"| {setting} | " + ", ".join(f"{100 * x:.2f}%" for x in accuracy) + " | "
              + ", ".join(f"{x:.4f}" for x in loss)
              + f" | {sum(r['skipped'] for r in runs)} | "
              + f"{statistics.mean(r['seconds'] for r in runs):.0f} | "
              + (", ".join(f.replace("_", " ") for f in agreeing) or "no") + " |")


if __name__ == "__main__":
    main()
