#!/usr/bin/env python3
"""Writes this folder's files with the programs whose formats Weft reads.

    python3 -m venv VENV && VENV/bin/pip install torch torchvision timm transformers safetensors
    VENV/bin/python generate.py            # all but the next line's
    python3 generate.py --older NAME       # dtypes_NAME.pth, with another PyTorch: 1.13 is Debian's

Weights are random and small. expected.safetensors holds what the programs themselves make of them:
images, logits in f64, interpolated position embeddings, and the tensors of dtypes.pth.
"""

import argparse
import os
import sys
from collections import OrderedDict

import torch

FOLDER = os.path.dirname(os.path.abspath(__file__))
IMAGE, PATCH, LAYERS, HEADS, WIDTH, HIDDEN, CLASSES = 12, 4, 2, 2, 16, 32, 5


def path(name):
    return os.path.join(FOLDER, name)


def dtypes():
    """A tensor of every dtype, and views that share storages."""
    generator = torch.Generator().manual_seed(1)
    base = torch.randn(4, 6, generator=generator)
    integers = torch.randint(-100, 100, (3, 5), generator=generator)
    state = OrderedDict(
        f64=base.double() * 1e-300,
        f32=base,
        f16=base.half(),
        bf16=base.bfloat16(),
        i64=integers * 2**40,
        i32=(integers * 2**20).int(),
        i16=(integers * 300).short(),
        i8=integers.char(),
        u8=(integers + 100).byte(),
        bool=integers > 0,
        scalar=torch.tensor(-2.5),
        empty=torch.zeros(0, 7),
        special=torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-45]),
        row=base[2],
        column=base[:, 1],
        transposed=base.t(),
        every_other=base[1:, ::2],
        expanded=base[0].expand(3, 6),
    )
    state["parameter"] = torch.nn.Parameter(base[1:3] + 1)
    return state


def randomise(model):
    """Random in every tensor: zeros and ones would hide a swapped pair."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter) + 0.1)
    return model.eval()


def torchvision_model():
    import torchvision
    return randomise(
        torchvision.models.VisionTransformer(image_size=IMAGE, patch_size=PATCH, num_layers=LAYERS,
                                             num_heads=HEADS, hidden_dim=WIDTH, mlp_dim=HIDDEN,
                                             num_classes=CLASSES))


def timm_model():
    from timm.models.vision_transformer import VisionTransformer
    return randomise(
        VisionTransformer(img_size=IMAGE, patch_size=PATCH, num_classes=CLASSES, embed_dim=WIDTH,
                          depth=LAYERS, num_heads=HEADS, mlp_ratio=HIDDEN / WIDTH))


def hugging_face_model():
    from transformers import ViTConfig, ViTForImageClassification
    names = {i: f"thing {i}" for i in range(CLASSES)}
    return randomise(
        ViTForImageClassification(
            ViTConfig(hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
                      intermediate_size=HIDDEN, image_size=IMAGE, patch_size=PATCH,
                      id2label=names, label2id={v: k for k, v in names.items()})))


def older_names(state):
    """As torchvision's published files have them."""
    rename = lambda key: key.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2.")
    return OrderedDict((rename(key), value) for key, value in state.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--older", metavar="NAME")
    arguments = parser.parse_args()
    if arguments.older:
        torch.save(dtypes(), path(f"dtypes_{arguments.older}.pth"))
        return

    import safetensors.torch
    import timm
    import torchvision
    import transformers
    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)
    torch.save(dtypes(), path("dtypes.pth"))
    torch.serialization.set_crc32_options(False)
    torch.save({"a": torch.arange(3.0)}, path("no_crc.pth"))
    torch.serialization.set_crc32_options(True)

    ours = torchvision_model()
    torch.save(ours.state_dict(), path("torchvision.pth"))
    optimizer = torch.optim.AdamW(ours.parameters())
    wrapped = OrderedDict(("module." + key, torch.nn.Parameter(value))
                          for key, value in older_names(ours.state_dict()).items())
    torch.save({"epoch": 3, "state_dict": wrapped, "optimizer": optimizer.state_dict()},
               path("wrapped.pth"))
    theirs = timm_model()
    safetensors.torch.save_file(theirs.state_dict(), path("timm.safetensors"))
    face = hugging_face_model()
    face.save_pretrained(path("huggingface"))
    headless = transformers.ViTModel(face.config)  # with a pooler instead
    headless.load_state_dict(face.vit.state_dict(), strict=False)
    torch.save(headless.state_dict(), path("huggingface_in_memory.pth"))

    # What must be refused.
    small = {"weight": torch.ones(2), "bias": torch.zeros(2)}
    torch.save(small, path("legacy.pth"), _use_new_zipfile_serialization=False)
    torch.save(torch.nn.Linear(2, 2), path("module.pth"))
    torch.save(small, path("protocol_4.pth"), pickle_protocol=4)
    torch.save({"weight": torch.ones(2, dtype=torch.uint16)}, path("uint16.pth"))
    torch.save({"weight": torch.ones(2, 2).to_sparse()}, path("sparse.pth"))
    torch.save({"weight": torch.ones(2, dtype=torch.complex64)}, path("complex.pth"))
    torch.save({"epoch": 3, "weight": torch.ones(2)}, path("not_a_tensor.pth"))
    torch.jit.script(torch.nn.Linear(1, 1)).save(path("torchscript.pt"))

    images = torch.randn(2, 3, IMAGE, IMAGE, dtype=torch.float64)
    expected = {"images": images}
    with torch.no_grad():
        expected["logits.torchvision"] = ours.double()(images)
        expected["logits.timm"] = theirs.double()(images)
        expected["logits.huggingface"] = face.double()(pixel_values=images).logits
        positions = ours.state_dict()["encoder.pos_embedding"].double()
        expected["positions"] = positions
        for side in (1, 2, 5):
            state = {"encoder.pos_embedding": positions.clone()}
            state = torchvision.models.vision_transformer.interpolate_embeddings(
                side * PATCH, PATCH, state)
            expected[f"positions.torchvision.{side}"] = state["encoder.pos_embedding"]
            grid = positions[:, 1:].reshape(1, 3, 3, WIDTH).permute(0, 3, 1, 2)
            # timm's resample_abs_pos_embed, which computes in float32, in float64.
            grid = torch.nn.functional.interpolate(grid, size=(side, side), mode="bicubic",
                                                   antialias=True)
            expected[f"positions.timm.{side}"] = torch.cat(
                [positions[:, :1], grid.permute(0, 2, 3, 1).reshape(1, -1, WIDTH)], 1)
    for name, tensor in dtypes().items():
        wide = tensor.int() if tensor.dtype in (torch.int8, torch.int16) else tensor
        expected["dtypes." + name] = wide.detach()
    safetensors.torch.save_file({k: v.contiguous().clone() for k, v in expected.items()},
                                path("expected.safetensors"))
    for name in ("expected.safetensors", "timm.safetensors", "huggingface/model.safetensors"):
        os.chmod(path(name), 0o644)
    print(f"torch {torch.__version__}, torchvision {torchvision.__version__}, timm "
          f"{timm.__version__}, transformers {transformers.__version__}, safetensors "
          f"{safetensors.__version__}", file=sys.stderr)


if __name__ == "__main__":
    main()
