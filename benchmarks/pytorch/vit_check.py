#!/usr/bin/env python3
"""Compares Weft's ViT-B/16 with torchvision's: logits, loss, gradients, ten AdamW steps.

    bazel build //benchmarks/pytorch:vit_check
    python3 benchmarks/pytorch/vit_check.py [--weft PROGRAM] [--threads N] [--keep DIR]

Needs torch and torchvision: Debian's python3-torch and python3-torchvision, or newer. With Debian's,
install libopenblas0-pthread too, or the reference BLAS takes its time.

Both start from one file of float32 weights and compute in float32 and in float64. The truth is
PyTorch's float64 run. An error is a Euclidean norm over a whole tensor, relative to the truth's; for
parameters it is relative to the truth's change over the ten steps. What must hold, per tensor:

  float64   Weft's error <= 1e-12, of parameters <= 1e-8. Both programs round at 2^-53 = 1.1e-16
            per operation and twelve layers amplify that; a wrong term, constant or order of
            operations cannot hide below these.
  float32   Weft's error <= 4 x PyTorch's own + 16 x 2^-24, of parameters 10 x. Both add the same
            terms in other orders, so their errors have one size; 4 allows for luck between the
            two, and the second term for tensors where PyTorch's happens to be next to nothing, as
            in a single number like the loss.

Parameters have wider bounds because Adam divides each gradient by its own size: where a gradient is
smaller than the rounding error of its sum, rounding decides the direction of a full-sized step. The
bias of the keys is such a place (its gradient is zero, as softmax does not change when every score
of a row does), and so are a few elements of most matrices, which then make up nearly all of the
tensor's error.

So the elements of the parameters are held one by one as well, 99% of each tensor's to a bound of
their own. Adam's step t is lr m / sqrt(v), m the mean of the gradients so far with weights a that
sum to 1, v that of their squares with weights b. With errors d of the gradients, to first order,

  |change of m / sqrt(v)| <= (sum a |d| + |m| / sqrt(v) sqrt(sum b d^2)) / sqrt(v)

and |m| / sqrt(v) <= sqrt(sum a^2 / b) <= 1.05 for ten steps and Adam's 0.9 and 0.999 (Cauchy and
Schwarz). Let r be the root mean square over the tensor of such an error, the largest of the steps so
far. An element whose every |d| is k r differs by k reach after ten steps, where

  reach = sum over steps of 2.05 lr r / sqrt(v)

with the element's own v. Its |d| / r have a mean square over the tensor of at most 1 a step: at
most 10 / k^2 of the elements go beyond k reach (Chebyshev), 1% for k = sqrt(1000). To k reach comes
what ten updates round off, 2^-p each of the parameter (twice) and 8 of the step's operations. r is
what the bounds above allow gradients: 4 x the error of PyTorch's own at that step + 16 x 2^-24 in
float32; 1e-12 in float64 at the first step, and 1e-8 at those that begin with other parameters. No
step is longer than 1.05 lr, so an element whose bound exceeds 20 lr is not held by it; the share
that is held stands in the table.

Exits 1 when any of that does not hold.
"""

import argparse
import json
import os
import platform
import struct
import subprocess
import sys
import tempfile

import numpy as np
import torch
import torchvision

STEPS = 10
LR = 1e-4
WEIGHT_DECAY = 0.05

# Bounds: see above.
REACHES = 1000**0.5
FLOAT64_BOUND, FLOAT64_BOUND_PARAMETERS = 1e-12, 1e-8
FLOAT32_FACTOR, FLOAT32_FACTOR_PARAMETERS = 4, 10
FLOAT32_FLOOR = 16 * 2.0**-24

# The file format of safetensors, for the three dtypes that are needed.
DTYPES = {"F64": np.float64, "F32": np.float32, "I64": np.int64}


def write_safetensors(path, tensors):
    header, offset = {}, 0
    arrays = {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in tensors.items()}
    arrays = dict(sorted(arrays.items(), key=lambda item: (-item[1].itemsize, item[0])))
    for name, array in arrays.items():
        dtype = next(key for key, value in DTYPES.items() if value == array.dtype)
        shape = list(tensors[name].shape)
        header[name] = dict(dtype=dtype, shape=shape, data_offsets=[offset, offset + array.nbytes])
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in arrays.values():
            array.tofile(file)


def read_safetensors(path):
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    data = np.memmap(path, dtype=np.uint8, mode="r", offset=8 + size)
    result = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        array = np.frombuffer(data[begin:end].tobytes(), DTYPES[entry["dtype"]])
        result[name] = array.reshape(entry["shape"])
    return result


def make_input(seed):
    """Weights, images and labels; all float32."""
    torch.manual_seed(seed)
    model = torchvision.models.vit_b_16()
    with torch.no_grad():
        for parameter in model.parameters():
            # Zeros and ones (the head, biases, norms) would stop gradients and hide factors.
            if (parameter == parameter.flatten()[0]).all():
                parameter += 0.02 * torch.randn_like(parameter)
    tensors = {"model." + name: tensor for name, tensor in model.state_dict().items()}
    tensors["images"] = torch.randn(2, 3, 224, 224)
    tensors["labels"] = torch.tensor([3, 977])
    tensors["lr"] = torch.tensor(LR, dtype=torch.float64)
    tensors["weight_decay"] = torch.tensor(WEIGHT_DECAY, dtype=torch.float64)
    return tensors


class TorchRun:
    """PyTorch's steps in one dtype, and the results that vit_check.cc gives, by the same names."""

    def __init__(self, tensors, dtype):
        self.dtype, self.labels = dtype, tensors["labels"]
        self.images = tensors["images"].to(dtype)
        self.model = torchvision.models.vit_b_16().to(dtype)
        self.model.load_state_dict({k[6:]: v for k, v in tensors.items() if k.startswith("model.")})
        self.parameters = dict(self.model.named_parameters())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LR,
                                           weight_decay=WEIGHT_DECAY)
        self.results, self.losses = {}, []

    def backward(self):
        self.optimizer.zero_grad()
        logits = self.model(self.images)
        loss = torch.nn.functional.cross_entropy(logits, self.labels)
        loss.backward()
        self.losses.append(loss.item())
        if len(self.losses) == 1:
            self.results["logits"] = logits.detach().numpy()
            self.results["loss"] = loss.detach().numpy()
            for name, parameter in self.parameters.items():
                self.results["grad." + name] = parameter.grad.numpy().copy()
        print(f"  PyTorch {self.dtype}, step {len(self.losses)}: loss {self.losses[-1]:.12g}",
              file=sys.stderr)

    def finish(self):
        self.results["losses"] = np.array(self.losses)
        for name, parameter in self.parameters.items():
            self.results["final." + name] = parameter.detach().numpy()
        return self.results


def root_mean_square(tensor):
    return torch.linalg.vector_norm(tensor.double()).item() / tensor.numel() ** 0.5


def run_torch(tensors):
    """Results in float32 and in float64, and each parameter's reach in both (see above)."""
    torch32, truth = TorchRun(tensors, torch.float32), TorchRun(tensors, torch.float64)
    largest = {"f32": {}, "f64": {}}
    reach = {kind: {name: np.zeros(p.shape) for name, p in truth.parameters.items()}
             for kind in largest}
    for step in range(STEPS):
        torch32.backward()
        truth.backward()
        errors = {"f32": {}, "f64": {}}
        for name, parameter in truth.parameters.items():
            size = root_mean_square(parameter.grad)
            theirs = root_mean_square(torch32.parameters[name].grad - parameter.grad)
            errors["f32"][name] = FLOAT32_FACTOR * theirs + FLOAT32_FLOOR * size
            errors["f64"][name] = size * (FLOAT64_BOUND if step == 0 else FLOAT64_BOUND_PARAMETERS)
        torch32.optimizer.step()
        truth.optimizer.step()
        for name, parameter in truth.parameters.items():
            v = truth.optimizer.state[parameter]["exp_avg_sq"].numpy() / (1 - 0.999 ** (step + 1))
            for kind in largest:
                r = largest[kind][name] = max(largest[kind].get(name, 0), errors[kind][name])
                reach[kind][name] += 2.05 * LR * r / np.sqrt(v + 1e-300)
    return torch32.finish(), truth.finish(), reach


def run_weft(program, input_path, output_path, dtype, threads):
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
    subprocess.run([program, input_path, output_path, dtype], check=True, env=environment)
    return read_safetensors(output_path)


def error(got, truth, start):
    """(largest absolute difference, norm of the difference relative to the truth's)"""
    difference = got.astype(np.float64) - truth
    scale = truth - start if start is not None else truth
    return np.abs(difference).max(), np.linalg.norm(difference) / np.linalg.norm(scale)


def compare(title, initial, truth, weft, torch32):
    """Prints a table of the worst tensor of each quantity; True when every bound holds."""
    groups = [
        ("logits", ["logits"]),
        ("loss", ["loss"]),
        ("losses of ten steps", ["losses"]),
        ("gradients", [name for name in truth if name.startswith("grad.")]),
        ("change in ten steps", [name for name in truth if name.startswith("final.")]),
    ]
    print(f"\n{title}\n")
    print("| quantity | tensors | largest difference | worst tensor | Weft's error | PyTorch's | "
          "bound | share |")
    print("|---|---|---|---|---|---|---|---|")
    holds = True
    for group, names in groups:
        rows, largest = [], 0
        for name in names:
            start = None
            is_parameter = name.startswith("final.")
            if is_parameter:
                start = initial["model." + name[6:]].numpy().astype(np.float64)
            if weft[name].shape != truth[name].shape:
                sys.exit(f"{name}: shape {weft[name].shape}, expected {truth[name].shape}")
            absolute, ours = error(weft[name], truth[name], start)
            if torch32 is None:
                theirs, bound = None, FLOAT64_BOUND_PARAMETERS if is_parameter else FLOAT64_BOUND
            else:
                theirs = error(torch32[name], truth[name], start)[1]
                factor = FLOAT32_FACTOR_PARAMETERS if is_parameter else FLOAT32_FACTOR
                bound = factor * theirs + FLOAT32_FLOOR
            share = float("inf") if np.isnan(ours) else ours / bound
            rows.append((share, ours, theirs, bound, name))
            largest = max(largest, absolute)
        share, ours, theirs, bound, name = max(rows)
        holds = holds and share <= 1
        theirs = "" if theirs is None else f"{theirs:.2e}"
        print(f"| {group} | {len(rows)} | {largest:.2e} | {name} | {ours:.2e} | {theirs} | "
              f"{bound:.2e} | {share:.2g} |")
    return holds


def compare_elements(initial, truth, weft, reach, unit_roundoff):
    """The same for the elements of the parameters, 99% of each tensor's."""
    rows = []
    for name in reach:
        final = truth["final." + name]
        size = np.maximum(np.abs(final), np.abs(initial["model." + name].numpy()))
        rounding = STEPS * unit_roundoff * (2 * size + 8 * LR)
        bound = REACHES * reach[name] + rounding
        difference = np.abs(weft["final." + name].astype(np.float64) - final)
        share = np.quantile(difference / bound, 0.99)
        rows.append((share, np.quantile(difference, 0.99), np.mean(bound < 2 * STEPS * LR), name))
    share, difference, _, name = max(rows)
    held = sum(row[2] * reach[row[3]].size for row in rows) / sum(r.size for r in reach.values())
    print("\n| quantity | tensors | worst tensor | 99th percentile of its differences | of their "
          "bounds | elements held |")
    print("|---|---|---|---|---|---|")
    print(f"| elements after ten steps | {len(rows)} | {name} | {difference:.2e} | {share:.2g} | "
          f"{100 * held:.2f}% |")
    return share <= 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weft", default="bazel-bin/benchmarks/pytorch/vit_check")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", help="folder for the files exchanged; by default a temporary one")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or temporary
        os.makedirs(folder, exist_ok=True)
        path = lambda name: os.path.join(folder, name + ".safetensors")
        initial = make_input(arguments.seed)
        write_safetensors(path("input"), initial)
        weft = {
            dtype: run_weft(arguments.weft, path("input"), path("weft_" + dtype), dtype,
                            arguments.threads) for dtype in ("f32", "f64")
        }
        torch32, truth, reach = run_torch(initial)
    print(f"PyTorch {torch.__version__}, torchvision {torchvision.__version__}, Python "
          f"{platform.python_version()}, {arguments.threads} threads, seed {arguments.seed}")
    holds = [
        compare("float64", initial, truth, weft["f64"], None),
        compare_elements(initial, truth, weft["f64"], reach["f64"], 2.0**-53),
        compare("float32", initial, truth, weft["f32"], torch32),
        compare_elements(initial, truth, weft["f32"], reach["f32"], 2.0**-24),
    ]
    print("\nall bounds hold" if all(holds) else "\na bound is violated")
    return 0 if all(holds) else 1


if __name__ == "__main__":
    sys.exit(main())
