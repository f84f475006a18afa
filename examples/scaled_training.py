"""The program of plain_training.py on any number of devices: the lines that differ are marked. Five of them scale it.

    python scaled_training.py [FILE [DEVICES STRATEGY PRECISION]]     # scaled.safetensors 4 fsdp bf16-mixed
"""

import sys

import weft
from weft import nn, optim
from weft.nn import functional as F


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else "scaled.safetensors"
    devices, strategy, precision = sys.argv[2:5] or ("1", "auto", "32-true")  # <-
    fabric = weft.train.Fabric(devices=devices, strategy=strategy, precision=precision, split_batches=True)  # <- 1
    fabric.launch()  # <- 2
    weft.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 64), nn.GELU(), nn.Linear(64, 10))
    optimizer = optim.AdamW(model.named_parameters(), lr=1e-3)

    dataset, _, _ = weft.data.open("builtin", 1)
    loader = weft.data.Loader(dataset, batch_size=64, drop_last=True)
    fabric.setup(model, optimizer)  # <- 3
    fabric.setup_dataloader(loader)  # <- 4
    for step in range(10):
        images, labels = next(loader)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        fabric.backward(loss)  # <- 5
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        fabric.print(f"step {step + 1} loss {loss.item():.4f}")  # <-
    fabric.save(path)  # <-


main()
