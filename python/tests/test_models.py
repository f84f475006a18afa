"""VGG-11 and the simple CNN give the logits of PyTorch's modules and of plain NumPy, and PyTorch's gradients."""

import importlib.util
import unittest

import weft
from optional import needs_numpy, needs_torch, numpy, torch

HAS_TORCHVISION = torch is not None and importlib.util.find_spec("torchvision") is not None
CLASSES, SIZE = 10, 32
VGG11 = [64, None, 128, None, 256, 256, None, 512, 512, None, 512, 512, None]  # channels, poolings
VGG11_CONVOLUTIONS = [0, 3, 6, 8, 11, 13, 16, 18]
SIMPLE_CNN_SHAPES = {
    "conv1.weight": (6, 3, 5, 5),
    "conv1.bias": (6,),
    "conv2.weight": (16, 6, 5, 5),
    "conv2.bias": (16,),
    "fc1.weight": (120, 400),
    "fc1.bias": (120,),
    "fc2.weight": (84, 120),
    "fc2.bias": (84,),
    "fc3.weight": (CLASSES, 84),
    "fc3.bias": (CLASSES,),
}


def vgg11_shapes():
    """torchvision's names and shapes, in its order."""
    shapes, channels = {}, 3
    for layer, width in zip(VGG11_CONVOLUTIONS, [width for width in VGG11 if width]):
        shapes[f"features.{layer}.weight"] = (width, channels, 3, 3)
        shapes[f"features.{layer}.bias"] = (width,)
        channels = width
    for layer, (width, inputs) in {0: (4096, 25088), 3: (4096, 4096), 6: (CLASSES, 4096)}.items():
        shapes[f"classifier.{layer}.weight"] = (width, inputs)
        shapes[f"classifier.{layer}.bias"] = (width,)
    return shapes


def random_state(shapes):
    """Weights that keep activations at their size, and biases that matter beside them."""
    random = numpy.random.default_rng(11)
    state = {}
    for name, shape in shapes.items():
        deviation = (2 / numpy.prod(shape[1:])) ** 0.5 if name.endswith("weight") else 0.5
        state[name] = random.standard_normal(shape, dtype=numpy.float32) * numpy.float32(deviation)
    return state


def random_images():
    return numpy.random.default_rng(12).standard_normal((2, 3, SIZE, SIZE), dtype=numpy.float32)


def convolution(x, weight, bias, padding):
    """In float64: the sum over the filter's elements of shifted images."""
    x = numpy.pad(x.astype(numpy.float64), ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    side = weight.shape[-1]
    height, width = x.shape[2] - side + 1, x.shape[3] - side + 1
    y = numpy.zeros((x.shape[0], weight.shape[0], height, width))
    for i in range(side):
        for j in range(side):
            window = x[:, :, i : i + height, j : j + width]
            y += numpy.einsum("kc,nchw->nkhw", weight[:, :, i, j].astype(numpy.float64), window, optimize=True)
    return y + bias[:, None, None]


def max_pool(x):
    n, c, height, width = x.shape
    return x.reshape(n, c, height // 2, 2, width // 2, 2).max((3, 5))


def linear(x, state, name):
    return x.astype(numpy.float32) @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def relu(x):
    return numpy.maximum(x, 0)


def vgg11_logits(state, x):
    """By NumPy alone."""
    layers = iter(VGG11_CONVOLUTIONS)
    for width in VGG11:
        if width:
            name = f"features.{next(layers)}"
            x = relu(convolution(x, state[f"{name}.weight"], state[f"{name}.bias"], 1))
        else:
            x = max_pool(x)
    assert x.shape[2:] == (1, 1)  # of 32 pixels; the adaptive pooling to 7 x 7 repeats it
    x = numpy.repeat(x.reshape(len(x), -1), 49, axis=1)
    x = relu(linear(x, state, "classifier.0"))
    x = relu(linear(x, state, "classifier.3"))
    return linear(x, state, "classifier.6")


def simple_cnn_logits(state, x):
    for name in ["conv1", "conv2"]:
        x = max_pool(relu(convolution(x, state[f"{name}.weight"], state[f"{name}.bias"], 0)))
    x = x.reshape(len(x), -1)
    x = relu(linear(x, state, "fc1"))
    x = relu(linear(x, state, "fc2"))
    return linear(x, state, "fc3")


def torch_vgg11():
    if HAS_TORCHVISION:
        import torchvision

        return torchvision.models.vgg11(weights=None, num_classes=CLASSES)
    from torch import nn

    class Vgg(nn.Module):
        def __init__(self):
            super().__init__()
            layers, channels = [], 3
            for width in VGG11:
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()] if width else [nn.MaxPool2d(2)]
                channels = width or channels
            self.features = nn.Sequential(*layers)
            self.avgpool = nn.AdaptiveAvgPool2d(7)
            widths = [512 * 49, 4096, 4096, CLASSES]
            self.classifier = nn.Sequential(
                nn.Linear(widths[0], widths[1]),
                nn.ReLU(),
                nn.Dropout(),
                nn.Linear(widths[1], widths[2]),
                nn.ReLU(),
                nn.Dropout(),
                nn.Linear(widths[2], widths[3]),
            )

        def forward(self, x):
            return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))

    return Vgg()


def torch_simple_cnn():
    from torch import nn
    from torch.nn import functional as F

    class SimpleCnn(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
            self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, CLASSES)

        def forward(self, x):
            x = F.max_pool2d(F.relu(self.conv1(x)), 2)
            x = torch.flatten(F.max_pool2d(F.relu(self.conv2(x)), 2), 1)
            return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))

    return SimpleCnn()


# Name, shapes, NumPy's logits and PyTorch's module.
MODELS = [
    ("vgg11", vgg11_shapes, vgg11_logits, torch_vgg11),
    ("simple_cnn", lambda: SIMPLE_CNN_SHAPES, simple_cnn_logits, torch_simple_cnn),
]
# Sums of up to 25,088 products, over up to eleven layers, in float32: of the largest logit.
TOLERANCE = 1e-5


def ours(name, state):
    model = weft.models.make(name, image_size=SIZE, classes=CLASSES).eval()
    shapes = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    loaded = model.load_state_dict({key: weft.from_numpy(value) for key, value in state.items()})
    assert loaded == ([], []), loaded
    return model, shapes


def largest_difference(got, expected):
    return float(numpy.abs(got - expected).max() / numpy.abs(expected).max())


class Logits(unittest.TestCase):
    @needs_numpy
    def test_numpy(self):
        for name, shapes, logits, _ in MODELS:
            with self.subTest(name):
                state, images = random_state(shapes()), random_images()
                model, own_shapes = ours(name, state)
                self.assertEqual(list(own_shapes.items()), list(shapes().items()))
                with weft.no_grad():
                    got = model(weft.from_numpy(images)).numpy()
                self.assertLess(largest_difference(got, logits(state, images)), TOLERANCE)

    @needs_torch
    @needs_numpy
    def test_torch(self):
        for name, shapes, _, make in MODELS:
            with self.subTest(name):
                state, images = random_state(shapes()), random_images()
                model, own_shapes = ours(name, state)
                theirs = make().eval()
                self.assertEqual({key: tuple(t.shape) for key, t in theirs.state_dict().items()}, own_shapes)
                theirs.load_state_dict({key: torch.from_numpy(value) for key, value in state.items()})
                got, expected = model(weft.from_numpy(images)), theirs(torch.from_numpy(images))
                self.assertLess(largest_difference(got.detach().numpy(), expected.detach().numpy()), TOLERANCE)
                weft.nn.functional.cross_entropy(got, weft.tensor([1, 7])).backward()
                torch.nn.functional.cross_entropy(expected, torch.tensor([1, 7])).backward()
                gradients = dict(theirs.named_parameters())
                for key, parameter in model.named_parameters():
                    difference = largest_difference(parameter.grad.numpy(), gradients[key].grad.numpy())
                    self.assertLess(difference, TOLERANCE, key)


if __name__ == "__main__":
    unittest.main()
