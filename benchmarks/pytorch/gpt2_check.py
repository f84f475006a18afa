#!/usr/bin/env python3
"""Compares Weft's GPT-2 with transformers', at its smallest published size, 124 million parameters.

    python3 -m venv VENV && VENV/bin/pip install torch transformers safetensors
    bazel build //benchmarks/pytorch:gpt2_check
    VENV/bin/python benchmarks/pytorch/gpt2_check.py [--threads N] [--seed S]

The weights are random, and so are two rows of 128 tokens. GPT2LMHeadModel writes them with
save_pretrained and, as the first published file names them, with torch.save; Weft reads both. What
must hold:

  logits     An error is a Euclidean norm relative to that of transformers' float64 logits. In
             float64 Weft's is at most 1e-12: both programs round at 2^-53 = 1.1e-16 per operation
             and twelve layers amplify that; a wrong term, eps or mask cannot hide below it. In
             float32 it is at most 4 x transformers' own + 16 x 2^-24: both add the same terms in
             other orders, so their errors have one size.
  generated  Greedily, from a prompt of 16 tokens and with the cache, 32 tokens in float64: those
             of transformers' generate.

Exits 1 when any of that does not hold.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections import OrderedDict

import safetensors.torch
import torch
import transformers

FLOAT64_BOUND = 1e-12
FLOAT32_FACTOR, FLOAT32_FLOOR = 4, 16 * 2.0**-24
PROMPT, GENERATED = 16, 32


def make_model():
    """Zeros and ones (biases, norms) would hide swapped tensors, so they get noise; weights five
    times as large as GPT-2's first ones make attention pick and choose."""
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter *= 5
            else:
                parameter += 0.1 * torch.randn_like(parameter)
    return model.eval()


def hub_names(state):
    """As in the first published file."""
    return OrderedDict((key.removeprefix("transformer."), tensor) for key, tensor in state.items()
                       if key != "lm_head.weight")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", default="bazel-bin/benchmarks/pytorch/gpt2_check")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    print(f"PyTorch {torch.__version__}, transformers {transformers.__version__}, safetensors "
          f"{safetensors.__version__}, Python {platform.python_version()}, {arguments.threads} "
          f"threads, seed {arguments.seed}")
    model = make_model()
    tokens = torch.randint(0, model.config.vocab_size, (2, 128))
    prompt = torch.randint(0, model.config.vocab_size, (PROMPT,))
    holds = True
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = lambda name: os.path.join(folder, name)
        safetensors.torch.save_file({"tokens": tokens, "prompt": prompt}, path("tokens"))
        model.save_pretrained(path("gpt2"))
        torch.save(hub_names(model.state_dict()), path("gpt2/hub.bin"))
        single = model(tokens).logits.double()
        truth = model.double()(tokens).logits
        following = model.generate(prompt[None], attention_mask=torch.ones(1, PROMPT),
                                   max_new_tokens=GENERATED, min_new_tokens=GENERATED,
                                   do_sample=False, eos_token_id=None, pad_token_id=0)[0, PROMPT:]
        error_of = lambda logits: float((logits.double() - truth).norm() / truth.norm())
        theirs = error_of(single)
        print("\n| file | precision | Weft's error | transformers' | bound | share | generated |\n"
              "|---|---|---|---|---|---|---|")
        for file in ("gpt2", "gpt2/hub.bin"):
            for precision in ("f64", "f32"):
                environment = dict(os.environ, OMP_NUM_THREADS=str(arguments.threads),
                                   GOMP_SPINCOUNT="1000")
                subprocess.run([arguments.check, path(file), path("tokens"), path("out"),
                                precision], check=True, env=environment)
                out = safetensors.torch.load_file(path("out"))
                error = error_of(out["logits"])
                is_double = precision == "f64"
                bound = FLOAT64_BOUND if is_double else FLOAT32_FACTOR * theirs + FLOAT32_FLOOR
                equal = int((out["generated"] == following).sum())
                holds = holds and error <= bound and (equal == GENERATED or not is_double)
                shown = "" if is_double else f"{theirs:.2e}"
                print(f"| {file} | {precision} | {error:.2e} | {shown} | {bound:.2e} | "
                      f"{error / bound:.2g} | {equal} of {GENERATED} |", flush=True)
    print("\neverything holds" if holds else "\nsomething does not hold")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
