"""A small classifier on the built-in images: the loop of plain_training.cc in Python."""

import sys

import weft
from weft import nn, optim
from weft.nn import functional as F


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else "plain.safetensors"
    weft.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 64), nn.GELU(), nn.Linear(64, 10))
    optimizer = optim.AdamW(model.named_parameters(), lr=1e-3)

    dataset, _, _ = weft.data.open("builtin", 1)
    loader = weft.data.Loader(dataset, batch_size=64, drop_last=True)
    for step in range(10):
        images, labels = next(loader)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"step {step + 1} loss {loss.item():.4f}")
    weft.save_file(model.state_dict(), path, {"format": "pt"})


main()
