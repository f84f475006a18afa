#!/usr/bin/env python3
"""Compares Weft with PyTorch on random programs of views, in-place ops, no_grad and detach.

    bazel build //benchmarks/pytorch:view_programs
    python3 benchmarks/pytorch/view_programs.py [--weft PROGRAM] [--seed FIRST] [--programs COUNT]

Needs torch: Debian's python3-torch, or newer. Both compute in float64. Where both answer, every
variable's values and every leaf's gradient must agree to 1e-11 of the largest among them: some
twenty operations round at 1.1e-16 each, and intermediate results may be larger than what comes out.

Either may refuse a program. The table counts refusals by kind and by what the other side did.
Exits 1 when any number differs, when Weft gives a reason that is none of its list, or when it
refuses more than 5% of the programs that PyTorch answers.
"""

import argparse
import collections
import json
import re
import subprocess
import sys

import torch

TOLERANCE = 1e-11
MOST_REFUSED = 0.05


def run_torch(program):
    """PyTorch's (values, gradients), or the message of its refusal."""
    names = {"torch": torch}
    try:
        exec(program["source"], names)
        variables = []
        while f"v{len(variables)}" in names:
            variables.append(names[f"v{len(variables)}"])
        loss = torch.zeros((), dtype=torch.float64)
        for output, weights in zip(program["outputs"], program["weights"]):
            x = variables[output]
            weight = torch.tensor(weights[: x.numel()], dtype=torch.float64).reshape(x.shape)
            loss = loss + (x * weight).sum()
        if loss.requires_grad:
            loss.backward()
    except RuntimeError as error:
        return None, str(error)
    values = [x.detach().reshape(-1).tolist() for x in variables]
    gradients = []
    for leaf in program["leaves"]:
        x = variables[leaf]
        gradient = torch.zeros_like(x) if x.grad is None else x.grad
        gradients += gradient.reshape(-1).tolist()
    return (values, gradients), ""


def agree(ours, theirs):
    if len(ours) != len(theirs):
        return False
    largest = max([1.0] + [abs(x) for x in ours + theirs])
    return all(abs(a - b) <= TOLERANCE * largest for a, b in zip(ours, theirs))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weft", default="bazel-bin/benchmarks/pytorch/view_programs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--programs", type=int, default=20000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    command = [arguments.weft, str(arguments.seed), str(arguments.programs)]
    counts, differences = collections.Counter(), 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            program = json.loads(line)
            answer, message = run_torch(program)
            kind = re.sub(r"\d+|\[.*?\]", "#", message.split(".")[0])[:90]
            if program["message"]:
                counts["Weft alone: " + program["refusal"] if answer else "both"] += 1
                if not program["refusal"]:
                    print(f"unknown refusal: {program['message']}\n{program['source']}")
                    differences += 1
            elif not answer:
                counts["PyTorch alone: " + kind] += 1
            else:
                counts["answered by both"] += 1
                values, gradients = answer
                ours = program["values"] + [program["gradients"]]
                theirs = values + [gradients]
                if len(ours) != len(theirs) or not all(map(agree, ours, theirs)):
                    differences += 1
                    print(f"seed {program['seed']} differs:\n{program['source']}"
                          f"outputs {program['outputs']}\nWeft    {ours}\nPyTorch {theirs}\n")
    if process.returncode != 0:
        sys.exit(f"{arguments.weft} failed")
    total = sum(counts.values())
    print(f"PyTorch {torch.__version__}, {total} programs from seed {arguments.seed}")
    for kind, count in sorted(counts.items(), key=lambda item: -item[1]):
        print(f"{100 * count / total:7.2f}%  {kind}")
    refused = sum(count for kind, count in counts.items() if kind.startswith("Weft alone"))
    answered = refused + counts["answered by both"]
    print(f"{differences} differences; Weft refuses {100 * refused / answered:.2f}% of what PyTorch "
          f"answers")
    return 0 if differences == 0 and refused <= MOST_REFUSED * answered else 1


if __name__ == "__main__":
    sys.exit(main())
