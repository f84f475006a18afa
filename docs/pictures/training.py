#!/usr/bin/env python3
"""Draws the README's picture of a training: what the model sees, and how it learns.

    ./weft images --split test --per-class 8 --sheet sheet.png
    ./weft train --json > events.jsonl
    docs/pictures/training.py sheet.png events.jsonl docs/pictures/training.png    # needs matplotlib
"""
import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

CLASSES = ["disc", "ring", "square", "triangle", "cross", "star", "crescent", "stripes",
           "checkerboard", "dots"]
INK, GREY, BLUE, ORANGE = "#1f2328", "#8b949e", "#1f6feb", "#d2691e"


def smooth(values, width=25):
    """The running mean, over what there is of the last `width` values."""
    return [sum(values[max(0, i - width):i + 1]) / len(values[max(0, i - width):i + 1])
            for i in range(len(values))]


def main(sheet, events, output):
    with open(events) as file:
        lines = [json.loads(line) for line in file]
    steps = [e for e in lines if e["event"] == "step"]
    epochs = [e for e in lines if e["event"] == "epoch"]
    done = lines[-1]
    assert done["event"] == "done", f"{events}: not a complete run"

    plt.rcParams.update({"font.size": 10, "text.color": INK, "axes.edgecolor": GREY,
                         "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
                         "axes.spines.top": False, "axes.spines.right": False})
    figure, (images, loss, accuracy) = plt.subplots(
        1, 3, figsize=(11, 3.6), width_ratios=[1.05, 1, 1], layout="constrained")

    picture = plt.imread(sheet)
    images.imshow(picture, interpolation="nearest")
    rows = len(CLASSES)
    images.set_yticks([(i + 0.5) * picture.shape[0] / rows for i in range(rows)], CLASSES)
    images.set_xticks([])
    images.tick_params(length=0)
    images.spines[:].set_visible(False)
    images.set_title("images of the ten built-in classes")

    x = [s["step"] for s in steps]
    loss.plot(x, [s["loss"] for s in steps], color=BLUE, alpha=0.2, linewidth=0.7)
    loss.plot(x, smooth([s["loss"] for s in steps]), color=BLUE, label="training, with label smoothing")
    at = [e["step"] for e in epochs]
    loss.plot(at, [e["val_loss"] for e in epochs], "o-", color=ORANGE, markersize=4,
              label="validation")
    loss.set(xlabel="step", title="loss", ylim=(0, None))
    loss.legend(frameon=False)

    percent = [100 * e["val_accuracy"] for e in epochs]
    accuracy.plot(at, [100 * e["train_accuracy"] for e in epochs], "o-", color=BLUE, markersize=4,
                  label="training, over the epoch")
    accuracy.plot(at, percent, "o-", color=ORANGE, markersize=4, label="validation")
    if done["test_accuracy"] is not None:
        accuracy.axhline(100 * done["test_accuracy"], color=GREY, linewidth=0.8, linestyle="--")
        accuracy.annotate(f"test {100 * done['test_accuracy']:.1f}%",
                          (at[0], 100 * done["test_accuracy"]), va="bottom")
    accuracy.set(xlabel="step", title="accuracy in percent", ylim=(0, 100))
    accuracy.legend(frameon=False, loc="lower right")
    figure.savefig(output, dpi=110)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
