#!/usr/bin/env python3
"""Exchanges weights between Weft and PyTorch, torchvision, timm, transformers and safetensors.

    python3 -m venv VENV && VENV/bin/pip install torch torchvision timm transformers safetensors
    bazel build //cli:weft //benchmarks/pytorch:weights_check
    VENV/bin/python benchmarks/pytorch/weights_check.py [--older PYTHON] [--threads N]

Models of ViT-B/16's size with random weights go both ways. What must hold:

  files in    What torch.save writes, in several layouts, safetensors and save_pretrained is read by
              `weft convert` and written as safetensors, which the safetensors package reads:
              every tensor has the same name, dtype, shape and bits. With --older another Python's
              PyTorch, such as Debian's 1.13, writes a file too.
  files out   `weft convert --names X` writes what X's model loads with strict=True; its f64 logits
              then equal those of the model that the weights came from, bit for bit: the same
              program on the same numbers.
  logits      Weft's of each file, against the source's f64 logits. An error is a Euclidean norm
              relative to the truth's. In float64 Weft's is at most 1e-12: both programs round at
              2^-53 = 1.1e-16 per operation and twelve layers amplify that; a wrong term, eps or
              order of q, k and v cannot hide below it. In float32 it is at most 4 x PyTorch's own
              + 16 x 2^-24: both add the same terms in other orders, so their errors have one size.
  positions   Embeddings interpolated to images of 384 and 160 pixels by torchvision's and timm's
              rule. Theirs round each of the 16 products and sums of a f32 row, ours rounds once:
              at most 20 x 2^-24 x (sum of the weights' magnitudes, at most 2.7) x the largest
              embedding.

Exits 1 when any of that does not hold.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import warnings
from collections import OrderedDict

import numpy as np
import safetensors
import safetensors.torch
import timm
import torch
import torchvision
import transformers

FLOAT64_BOUND = 1e-12
FLOAT32_FACTOR, FLOAT32_FLOOR = 4, 16 * 2.0**-24
POSITION_FACTOR = 20 * 2.0**-24 * 2.7

OLDER_SCRIPT = """
import sys, torch
generator = torch.Generator().manual_seed(5)
state = {}
for i, dtype in enumerate([torch.float64, torch.float32, torch.float16, torch.bfloat16]):
    state[f"w{i}"] = torch.randn(64, 32, generator=generator).to(dtype)
state["view"] = state["w1"].t()[3:9]
state["ids"] = torch.arange(7)
torch.save(state, sys.argv[1])
print(torch.__version__)
"""


def randomise(model):
    """Zeros and ones (biases, norms, heads) would hide swapped tensors and stop signals."""
    with torch.no_grad():
        for parameter in model.parameters():
            if (parameter == parameter.flatten()[0]).all():
                parameter += 0.02 * torch.randn_like(parameter)
    return model.eval()


def torchvision_model():
    return torchvision.models.vit_b_16()


def timm_model():
    return timm.create_model("vit_base_patch16_224", pretrained=False)


def hugging_face_model():
    return transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000))


MODELS = {"torchvision": torchvision_model, "timm": timm_model, "huggingface": hugging_face_model}


def logits_of(model, images):
    with torch.no_grad():
        result = model(images)
    return getattr(result, "logits", result)


def bits(tensor):
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()


class Check:

    def __init__(self, arguments, folder):
        self.arguments, self.folder, self.holds = arguments, folder, True

    def path(self, name):
        return os.path.join(self.folder, name)

    def run(self, program, *arguments):
        environment = dict(os.environ, OMP_NUM_THREADS=str(self.arguments.threads),
                           GOMP_SPINCOUNT="1000")
        return subprocess.run([program, *map(str, arguments)], check=True, env=environment,
                              stdout=subprocess.PIPE, text=True).stdout

    def convert(self, source, *options):
        out = self.path("converted.safetensors")
        self.run(self.arguments.weft, "convert", source, out, *options)
        return safetensors.torch.load_file(out)

    def report(self, ok, *cells):
        self.holds = self.holds and ok
        print("| " + " | ".join(str(cell) for cell in (*cells, "yes" if ok else "NO")) + " |",
              flush=True)

    def file_in(self, writer, path, state):
        """Compares what `weft convert` makes of a file with the state it was written from."""
        got = self.convert(path)
        equal = set(got) == set(state)
        for name in state if equal else ():
            ours, theirs = got[name], state[name]
            equal = equal and (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            equal = equal and bits(ours) == bits(theirs)
        if os.path.isdir(path):
            size = sum(os.path.getsize(os.path.join(path, name)) for name in os.listdir(path))
        else:
            size = os.path.getsize(path)
        self.report(equal, writer, len(state), f"{size:,}")

    def files_in(self, models):
        print("\n| file | tensors | bytes | bit-equal |\n|---|---|---|---|")
        state = models["torchvision"].state_dict()

        def saved(writer, what, expected=state, **options):
            torch.save(what, self.path("file.pth"), **options)
            self.file_in(writer, self.path("file.pth"), expected)

        saved("torch.save(state_dict)", state)
        older = OrderedDict((name.replace("mlp.0.", "mlp.linear_1.").replace(
            "mlp.3.", "mlp.linear_2."), tensor) for name, tensor in state.items())
        wrapped = {"module." + name: torch.nn.Parameter(tensor) for name, tensor in older.items()}
        optimizer = torch.optim.AdamW(models["torchvision"].parameters())
        saved("the same under \"state_dict\", Parameters, `module.`, `linear_1`",
              {"epoch": 1, "state_dict": wrapped, "optimizer": optimizer.state_dict()}, older)
        for dtype in (torch.float16, torch.bfloat16, torch.float64):
            narrow = OrderedDict((name, tensor.to(dtype)) for name, tensor in state.items())
            saved(f"torch.save, {str(dtype).removeprefix('torch.')}", narrow, narrow)
        torch.serialization.set_crc32_options(False)
        saved("torch.save without CRC-32", state)
        torch.serialization.set_crc32_options(True)
        flat = torch.cat([tensor.flatten() for tensor in state.values()])
        shared, offset = OrderedDict(), 0
        for name, tensor in state.items():
            shared[name] = flat[offset:offset + tensor.numel()].view(tensor.shape)
            offset += tensor.numel()
        saved("torch.save, all views of one storage", shared)
        transposed = OrderedDict((name, tensor.t().contiguous().t() if tensor.dim() == 2 else tensor)
                                 for name, tensor in state.items())
        saved("torch.save, matrices column by column", transposed)
        os.remove(self.path("file.pth"))
        if self.arguments.older:
            version = self.run(self.arguments.older, "-c", OLDER_SCRIPT, self.path("older.pth"))
            self.file_in(f"torch.save of PyTorch {version.strip()}", self.path("older.pth"),
                         torch.load(self.path("older.pth")))
        safetensors.torch.save_file(models["timm"].state_dict(), self.path("timm.safetensors"))
        self.file_in("safetensors.torch.save_file, timm", self.path("timm.safetensors"),
                     models["timm"].state_dict())
        models["huggingface"].save_pretrained(self.path("huggingface"))
        self.file_in("save_pretrained, Hugging Face's ViT", self.path("huggingface"),
                     safetensors.torch.load_file(self.path("huggingface/model.safetensors")))
        torch.save(models["huggingface"].state_dict(), self.path("huggingface.pth"))
        self.file_in("torch.save, Hugging Face's ViT", self.path("huggingface.pth"),
                     models["huggingface"].state_dict())
        torch.save(state, self.path("torchvision.pth"))

    def load_converted(self, names, source):
        """A model of `names`'s program with the source's weights, by way of Weft."""
        state = self.convert(source, "--names", names)
        if names == "huggingface":
            folder = self.path("pretrained")
            config = transformers.ViTConfig(num_labels=1000)
            os.makedirs(folder, exist_ok=True)
            config.save_pretrained(folder)
            os.replace(self.path("converted.safetensors"), os.path.join(folder, "model.safetensors"))
            model, info = transformers.ViTForImageClassification.from_pretrained(
                folder, output_loading_info=True)
            assert not any(info[key] for key in ("missing_keys", "unexpected_keys")), info
            return model.eval()
        model = MODELS[names]()
        model.load_state_dict(state, strict=True)
        return model.eval()

    def files_out(self, models, sources, truth, images):
        print("\n| weights of | written by Weft under the names of | read by | logits bit-equal |\n"
              "|---|---|---|---|")
        for source in MODELS:
            for names in MODELS:
                model = self.load_converted(names, sources[source])
                # Only Hugging Face's eps differs; the numbers of the weights are compared here.
                eps = 1e-12 if source == "huggingface" else 1e-6
                for module in model.modules():
                    if isinstance(module, torch.nn.LayerNorm):
                        module.eps = eps
                got = logits_of(model.double(), images)
                same_program = names == source
                if same_program:
                    self.report(bits(got) == bits(truth[source]), source, names, names)
                else:
                    error = float((got - truth[source]).norm() / truth[source].norm())
                    self.report(error <= FLOAT64_BOUND, source, names,
                                f"{names}, another program: error {error:.1e}")
                del model

    def logits(self, models, sources, truth, images):
        safetensors.torch.save_file({"images": images}, self.path("images.safetensors"))
        print("\n| file | precision | Weft's error | PyTorch's | bound | share | holds |\n"
              "|---|---|---|---|---|---|---|")
        for source, model in models.items():
            single = logits_of(model.float(), images.float()).double()
            theirs = float((single - truth[source]).norm() / truth[source].norm())
            for precision in ("f64", "f32"):
                self.run(self.arguments.check, sources[source], self.path("images.safetensors"),
                         self.path("logits.safetensors"), precision)
                got = safetensors.torch.load_file(self.path("logits.safetensors"))["logits"]
                error = float((got.double() - truth[source]).norm() / truth[source].norm())
                bound = FLOAT64_BOUND if precision == "f64" else (FLOAT32_FACTOR * theirs +
                                                                  FLOAT32_FLOOR)
                shown = f"{theirs:.2e}" if precision == "f32" else ""
                self.report(error <= bound, source, precision, f"{error:.2e}", shown,
                            f"{bound:.2e}", f"{error / bound:.2g}")

    def positions(self, models, sources):
        print("\n| position embeddings | pixels | largest difference | bound | holds |\n"
              "|---|---|---|---|---|")
        embedding = models["torchvision"].float().state_dict()["encoder.pos_embedding"]
        for size in (384, 160):
            theirs = {
                "torchvision":
                    torchvision.models.vision_transformer.interpolate_embeddings(
                        size, 16, OrderedDict({"encoder.pos_embedding": embedding.clone()})
                    )["encoder.pos_embedding"],
                "timm":
                    timm.layers.resample_abs_pos_embed(embedding, [size // 16, size // 16])
            }
            for rule, expected in theirs.items():
                self.run(self.arguments.check, sources["torchvision"], "-",
                         self.path("logits.safetensors"), "f32", size, rule)
                got = safetensors.torch.load_file(self.path("logits.safetensors"))["positions"]
                difference = float((got - expected).abs().max())
                bound = POSITION_FACTOR * float(embedding.abs().max())
                self.report(difference <= bound, rule, size, f"{difference:.2e}", f"{bound:.2e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weft", default="bazel-bin/cli/weft")
    parser.add_argument("--check", default="bazel-bin/benchmarks/pytorch/weights_check")
    parser.add_argument("--older", help="a Python with another PyTorch")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    print(f"PyTorch {torch.__version__}, torchvision {torchvision.__version__}, timm "
          f"{timm.__version__}, transformers {transformers.__version__}, safetensors "
          f"{safetensors.__version__}, NumPy {np.__version__}, Python {platform.python_version()}, "
          f"{arguments.threads} threads, seed {arguments.seed}")
    models = {name: randomise(make()) for name, make in MODELS.items()}
    images = torch.randn(2, 3, 224, 224, dtype=torch.float64)
    with tempfile.TemporaryDirectory() as folder:
        check = Check(arguments, folder)
        check.files_in(models)
        sources = {name: check.path(file) for name, file in [
            ("torchvision", "torchvision.pth"), ("timm", "timm.safetensors"),
            ("huggingface", "huggingface")]}
        truth = {name: logits_of(model.double(), images) for name, model in models.items()}
        check.logits(models, sources, truth, images)
        check.files_out(models, sources, truth, images)
        check.positions(models, sources)
    print("\neverything holds" if check.holds else "\nsomething does not hold")
    return 0 if check.holds else 1


if __name__ == "__main__":
    sys.exit(main())
