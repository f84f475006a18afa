#!/usr/bin/env python3
"""Writes what `weft compare --json --profile` printed as the tables of docs/benchmarks.md.

    ./weft compare --json --profile >result.json
    benchmarks/pytorch/compare_table.py result.json [more.json ...]

The lost cases come first, the worst of them on top, each with where the time goes on both sides.
"""

import json
import re
import sys


def figure(value, unit):
    if unit == "bytes":
        return f"{value / 1e6:.0f} MB"
    for scale, name in ((1e-6, "us"), (1e-3, "ms")):
        if value < 1e3 * scale:
            return f"{value / scale:.3g} {name}"
    return f"{value:.3g} s"


def spread(side):
    return f"{100 * (side['max'] - side['min']) / side['median']:.0f}%"


def rows_of(case):
    """One row per peer: (ratio or None, cells)."""
    weft, unit = case["weft"], case["unit"]
    if "failure" in weft:
        ours = ["failed", weft["failure"]]
    else:
        ours = [figure(weft["median"], unit), spread(weft)]
    rows = []
    for side, peer in case["peers"].items():
        if "failure" in peer:
            rows.append((None, [case["name"], *ours, side, "-", "", "", "", peer["failure"]]))
            continue
        theirs = [side, figure(peer["median"], unit), spread(peer)]
        ratio = peer.get("ratio")
        if ratio is None:
            rows.append((None, [case["name"], *ours, *theirs, "", "", ""]))
            continue
        pairs = " ".join(f"{value:.2f}" for value in ratio["values"])
        cells = [*theirs, f"{ratio['median']:.2f}", f"{ratio['best']:.2f}", pairs]
        rows.append((ratio["median"], [case["name"], *ours, *cells]))
    if not rows:
        rows.append((None, [case["name"], *ours, "", "", "", "", "", ""]))
    return rows


def print_table(rows):
    head = ["case", "Weft", "+-", "peer", "", "+-", "ratio", "best", "pair by pair"]
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def profile_line(rows):
    total = sum(row["ms"] for row in rows)
    parts = []
    for row in sorted(rows, key=lambda row: -row["ms"])[:4]:
        if total > 0 and row["ms"] >= 0.03 * total:
            # torch.compile names its graphs by hashes.
            name = re.sub(r"## Call CompiledFxGraph \w+ ##", "compiled graph", row["name"])
            parts.append(f"{name} {row['ms']:.3g} ms ({100 * row['ms'] / total:.0f}%)")
    return ", ".join(parts)


def main():
    cases = []
    for path in sys.argv[1:]:
        with open(path) as file:
            cases += json.load(file)["cases"]
    worst = {}
    for i, case in enumerate(cases):
        ratios = [ratio for ratio, _ in rows_of(case) if ratio is not None]
        worst[i] = min(ratios, default=float("inf"))
    lost = [cases[i] for i in sorted(worst, key=worst.get) if worst[i] < 1]

    print(f"### Lost: {len(lost)} of {len(cases)}\n")
    print_table(
        row for case in lost for ratio, row in rows_of(case) if ratio is not None and ratio < 1
    )
    print("### Where the time of the lost cases goes\n")
    for case in lost:
        print(f"- **{case['name']}**")
        if "profile" in case["weft"]:
            print(f"  - Weft: {profile_line(case['weft']['profile'])}")
        for side, peer in case["peers"].items():
            if "profile" in peer and peer["ratio"]["median"] < 1:
                print(f"  - {side}: {profile_line(peer['profile'])}")
    print()
    groups = list(dict.fromkeys(case["group"] for case in cases))
    for group in groups:
        print(f"### All of {group}\n")
        print_table(row for c in cases if c["group"] == group for _, row in rows_of(c))


if __name__ == "__main__":
    main()
