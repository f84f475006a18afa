"""Prints the logits that models/vgg_test.cc holds against: of torchvision's VGG-11, with weights and images by a formula.

    VENV/bin/pip install torch torchvision numpy && VENV/bin/python models/testdata/vgg.py
"""

import math

import numpy
import torch
import torchvision

SIZE, IMAGES = 64, 100  # pixels; the images' number among the tensors


def numbers(tensor, count, deviation):
    """The last steps of Murmur's hash on the numbers of elements, as numbers of that standard deviation."""
    x = numpy.arange(count, dtype=numpy.uint32) + numpy.uint32(tensor * 0x9E3779B9 & 0xFFFFFFFF)
    x ^= x >> 16
    x *= numpy.uint32(0x85EBCA6B)
    x ^= x >> 13
    x *= numpy.uint32(0xC2B2AE35)
    x ^= x >> 16
    return torch.from_numpy(((x / 2.0**32 - 0.5) * (math.sqrt(12) * deviation)).astype(numpy.float32))


model = torchvision.models.vgg11(weights=None, num_classes=10).eval()
with torch.no_grad():
    for number, parameter in enumerate(model.state_dict().values()):
        deviation = math.sqrt(2 / parameter[0].numel()) if parameter.dim() > 1 else 0.1
        parameter.copy_(numbers(number, parameter.numel(), deviation).view(parameter.shape))
    images = numbers(IMAGES, 2 * 3 * SIZE * SIZE, 1).view(2, 3, SIZE, SIZE)
    for row in model.double()(images.double()).tolist():
        print(", ".join(f"{logit:.9g}" for logit in row))
print(torch.__version__, torchvision.__version__)
