"""Modules written in C++ and in Python, optimizers, schedules, mixed precision, data, models, files."""

import copy
import gc
import math
import os
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

import weft
from weft import nn, optim
from weft.nn import functional as F


class Mlp(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)
        self.scale = nn.Parameter(weft.ones(width))
        self.register_buffer("calls", weft.zeros((), dtype=weft.int64))
        self.note = "not a tensor"

    def forward(self, x):
        self.calls += 1
        return self.fc2(F.gelu(self.fc1(x))) * self.scale


class Modules(unittest.TestCase):
    def test_what_is_assigned_is_registered(self):
        m = Mlp(4, 8)
        self.assertEqual(
            [name for name, _ in m.named_parameters()],
            ["scale", "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"],
        )
        self.assertEqual([name for name, _ in m.named_buffers()], ["calls"])
        self.assertEqual(m.num_parameters(), 4 + 4 * 8 * 2 + 12)
        self.assertIs(dict(m.named_children())["fc1"], m.fc1)
        self.assertEqual(m(weft.ones(2, 4)).shape, (2, 4))
        self.assertEqual(m.calls.item(), 1)
        self.assertIsInstance(m.scale, nn.Parameter)
        self.assertNotIsInstance(m.calls, nn.Parameter)
        with self.assertRaises(AttributeError):
            m.absent
        with self.assertRaisesRegex(ValueError, "contain itself"):
            m.fc1.parent = m

        class Hasty(nn.Module):
            def __init__(self):
                self.fc = nn.Linear(1, 1)

        with self.assertRaisesRegex(AttributeError, r"calls super\(\).__init__\(\) first"):
            Hasty()

    def test_a_name_that_is_taken_keeps_its_tensor(self):
        m = Mlp(4, 8)
        handle = dict(m.named_parameters())["scale"]
        m.scale = nn.Parameter(weft.full((4,), 3.0))
        self.assertEqual(handle.tolist(), [3.0] * 4)
        self.assertTrue(m.scale.is_same(handle) and handle.requires_grad)
        m.fc2 = nn.Linear(8, 4, bias=False)
        self.assertEqual(len(m.parameters()), 4)

    def test_a_buffer_that_was_none_is_the_tensor_that_comes(self):
        m = nn.Module()
        m.register_buffer("table", None)
        m.register_buffer("other", None)
        m.plain = None
        self.assertEqual((m.table, list(m.state_dict())), (None, []))
        later = copy.deepcopy(m)
        m.table, m.plain = weft.ones(2), weft.ones(3)
        self.assertEqual([name for name, _ in m.named_buffers()], ["table"])
        m.to(weft.float64)
        self.assertEqual((m.table.dtype, m.plain.dtype), (weft.float64, weft.float32))
        later.other = weft.zeros(1)
        self.assertEqual(list(later.state_dict()), ["other"])

    def test_a_parameter_without_a_gradient_is_one_that_is_frozen(self):
        m = nn.Linear(2, 2)
        m.table = nn.Parameter(weft.ones(2), requires_grad=False)
        m.weight = nn.Parameter(weft.ones(2, 2), requires_grad=False)
        m.bias = weft.zeros(2)  # says nothing
        m.plain = weft.ones(2)
        self.assertEqual([(name, x.requires_grad) for name, x in m.named_parameters()],
                         [("weight", False), ("bias", True), ("table", False)])
        m(weft.ones(1, 2)).sum().backward()
        self.assertEqual((m.weight.grad, m.bias.grad.tolist()), (None, [1, 1]))
        optim.SGD(m.named_parameters(), lr=1.0).step()
        self.assertEqual((m.weight.tolist(), m.bias.tolist()), ([[1, 1], [1, 1]], [-1, -1]))
        twin = copy.deepcopy(m)
        self.assertEqual((list(twin.state_dict()), twin.table.requires_grad), (["weight", "bias", "table"], False))
        m.weight = nn.Parameter(weft.ones(2, 2))
        self.assertTrue(m.weight.requires_grad)

    def test_what_is_registered_stays(self):
        m, given = Mlp(4, 8), nn.Parameter(weft.ones(4))
        for name, value, expected in (
            ("scale", None, "tensor, got NoneType"),
            ("scale", 2.0, "tensor, got float"),
            ("fc1", None, "module, got NoneType"),
            ("fc1", weft.ones(4), "module, got .*Tensor"),
        ):
            with self.assertRaisesRegex(TypeError, f'"{name}" of .*Mlp is registered: expected another {expected}'):
                setattr(m, name, value)
        for owner, name in ((m, "scale"), (m, "fc1"), (m.fc1, "bias")):
            with self.assertRaisesRegex(TypeError, f'"{name}" of .* is registered: .* got del'):
                delattr(owner, name)
        with self.assertRaisesRegex(TypeError, '"bias" of .*Linear is registered: expected another tensor, got NoneType'):
            m.fc1.bias = None
        m.other = None
        m.other = 3
        del m.other
        # A gradient would end there unsaid.
        with self.assertRaisesRegex(weft.Error, 'parameter "scale" of .*Mlp takes no history'):
            m.scale = given * 2
        m.scale = (given * 2).detach()
        self.assertEqual(m.state_dict()["scale"].tolist(), [2.0] * 4)

    def test_a_tensor_of_two_names_is_set_by_either(self):
        m = nn.Module()
        m.first = nn.Parameter(weft.ones(2))
        m.second = m.first
        m.second = weft.full((2,), 3.0)
        self.assertEqual(m.first.tolist(), [3.0, 3.0])
        self.assertTrue(m.second.is_same(m.first))

    def test_children_of_cpp_stay(self):
        attention, x = nn.MultiheadAttention(4, 2), weft.randn(1, 3, 4)
        y = attention(x).tolist()
        with self.assertRaisesRegex(TypeError, '"out_proj" of [a-z._]*MultiheadAttention is made in C[+][+]'):
            attention.out_proj = nn.Linear(4, 4)
        gc.collect()
        self.assertEqual(attention(x).tolist(), y)
        vit = weft.models.make("vit_lite", image_size=32, classes=4, layers=1)
        with self.assertRaisesRegex(TypeError, '"head" of .*Classifier is made in C[+][+]'):
            vit.head = nn.Linear(4, 7)
        self.assertEqual(vit(weft.randn(1, 3, 32, 32)).shape, (1, 4))
        # Those of Python may be replaced.
        attention.more = nn.Linear(4, 4)
        attention.more = nn.ReLU()
        layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        setattr(layers, "0", nn.Identity())
        self.assertEqual(layers(x).tolist(), x.relu().tolist())

    def test_modules_of_python_inside_those_of_cpp(self):
        class Double(nn.Module):
            def forward(self, x):
                return x * 2

        class Shifted(nn.Linear):
            def forward(self, x):
                return super().forward(x) + 100

        s = nn.Sequential(Double(), nn.Sequential(Shifted(2, 2), nn.ReLU()), nn.Identity())
        with weft.no_grad():
            nn.init.zeros_(s[1][0].weight)
            nn.init.zeros_(s[1][0].bias)
        self.assertEqual(s(weft.ones(1, 2)).tolist(), [[100.0, 100.0]])
        self.assertEqual([n for n, _ in s.named_parameters()], ["1.0.weight", "1.0.bias"])
        del Double
        gc.collect()
        self.assertEqual(s(weft.ones(1, 2)).tolist(), [[100.0, 100.0]])
        self.assertIsInstance(s[1][0], Shifted)

    def test_modules_outlive_the_one_that_gave_them(self):
        def named(m):
            return [part for _, part in m.named_modules()]

        def applied(m):
            parts = []
            self.assertIs(m.apply(parts.append), m)
            return parts

        def asked(m):
            parts = []

            class Outer(nn.Module):
                def forward(self, x):
                    return self.inner(x)

                def structure(self):
                    return nn.ModelStructure(units=lambda name, part: parts.append((name, part)))

            outer = Outer()
            outer.inner = m
            fabric = weft.train.Fabric(strategy="fsdp")
            fabric.launch()
            fabric.setup(outer)
            self.assertIs(dict(parts)[""], outer)
            return [part for name, part in parts if name]

        x, names = weft.randn(2, 64), ["MultiheadAttention", "Linear"]  # of which C++ has made the second
        for given in (named, nn.Module.modules, applied, asked):
            with self.subTest(given.__name__):
                m = nn.MultiheadAttention(64, 2)
                expected = nn.functional.linear(x, m.out_proj.weight.clone(), m.out_proj.bias.clone()).tolist()
                parts = sorted(given(m), key=lambda part: names.index(type(part).__name__))
                self.assertEqual([type(part).__name__ for part in parts], names)
                self.assertIs(parts[0], m)
                m = parts[0] = None
                gc.collect()
                others = [nn.Linear(64, 7) for _ in range(40)]  # where it was
                self.assertEqual(parts[1].weight.shape, (64, 64))
                self.assertEqual(len(others), 40)
                if given is not asked:  # whose Fabric is gone
                    self.assertEqual(parts[1](x).tolist(), expected)

    def test_every_layer_may_be_derived_from(self):
        for base, arguments in (
            (nn.Linear, (2, 3)), (nn.LayerNorm, (4,)), (nn.RMSNorm, (4,)), (nn.BatchNorm2d, (4,)),
            (nn.Conv2d, (2, 4, 3)), (nn.Embedding, (5, 2)), (nn.Dropout, ()), (nn.GELU, ("tanh",)),
            (nn.MaxPool2d, (2,)), (nn.AvgPool2d, (2,)), (nn.MultiheadAttention, (4, 2)), (nn.Sequential, (nn.ReLU(),)),
        ):
            class Mine(base):
                def __init__(self):
                    super().__init__(*arguments)

                def forward(self, x):
                    return x + 1

            self.assertEqual(nn.Sequential(Mine())(weft.zeros(1)).tolist(), [1.0], base.__name__)

    def test_modes_conversions_and_freezing(self):
        m = nn.Sequential(Mlp(4, 8), nn.Dropout(0.5))
        self.assertTrue(m.training and m[0].fc1.training)
        self.assertIs(m.eval(), m)
        self.assertFalse(m[0].training)
        m.to(weft.bfloat16)
        self.assertEqual(m[0].fc1.weight.dtype, weft.bfloat16)
        self.assertEqual(m[0].calls.dtype, weft.int64)
        m.requires_grad_(False)
        self.assertFalse(any(p.requires_grad for p in m.parameters()))
        seen = []
        m.apply(lambda module: seen.append(type(module).__name__))
        self.assertEqual(seen, ["Sequential", "Mlp", "Linear", "Linear", "Dropout"])

    def test_states(self):
        a, b = Mlp(4, 8), Mlp(4, 8)
        state = a.state_dict()
        self.assertEqual(b.load_state_dict(state), ([], []))
        self.assertEqual(b.fc1.weight.tolist(), a.fc1.weight.tolist())
        del state["fc1.bias"]
        state["other"] = weft.ones(1)
        with self.assertRaisesRegex(weft.Error, "fc1.bias"):
            b.load_state_dict(state)
        self.assertEqual(b.load_state_dict(state, strict=False), (["fc1.bias"], ["other"]))

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.safetensors")
            a = Mlp(4, 8).to(weft.bfloat16)
            weft.save_file(a.state_dict(), path, {"format": "pt"})
            b = Mlp(4, 8)
            b.load_state_dict(weft.load_file(path))
            self.assertEqual(b.fc2.weight.tolist(), a.fc2.weight.tolist())
            with self.assertRaisesRegex(weft.Error, "absent.safetensors"):
                weft.load_file(os.path.join(folder, "absent.safetensors"))

    def test_lists_and_dicts_of_modules(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList([nn.Linear(2, 2) for _ in range(2)])
                self.heads = nn.ModuleDict({"a": nn.Linear(2, 1)})

            def forward(self, x):
                for layer in self.layers:
                    x = layer(x)
                return self.heads["a"](x)

        net = Net()
        self.assertEqual(net(weft.ones(3, 2)).shape, (3, 1))
        self.assertEqual(net.parameters()[0].shape, (2, 2))
        self.assertEqual([n for n, _ in net.named_parameters()][-1], "heads.a.bias")

    def test_layers(self):
        x = weft.randn(2, 3, 8, 8)
        for layer, shape in [
            (nn.Conv2d(3, 6, 3, padding=1, stride=2), (2, 6, 4, 4)),
            (nn.Conv2d(3, 6, (1, 3), groups=3, bias=False), (2, 6, 8, 6)),
            (nn.BatchNorm2d(3), (2, 3, 8, 8)),
            (nn.MaxPool2d(2), (2, 3, 4, 4)),
            (nn.AvgPool2d(3, stride=1), (2, 3, 6, 6)),
            (nn.Flatten(), (2, 192)),
            (nn.LayerNorm(8), (2, 3, 8, 8)),
            (nn.GELU("tanh"), (2, 3, 8, 8)),
        ]:
            self.assertEqual(layer(x).shape, shape, type(layer))
        attention = nn.MultiheadAttention(8, 2)
        self.assertEqual(attention(weft.randn(2, 5, 8)).shape, (2, 5, 8))
        self.assertEqual(attention.out_proj.weight.shape, (8, 8))
        self.assertEqual(nn.Embedding(10, 4)(weft.tensor([1, 2])).shape, (2, 4))
        with self.assertRaisesRegex(weft.Error, "linear"):
            nn.Linear(3, 2)(weft.ones(2, 4))

    def test_losses(self):
        logits, labels = weft.tensor([[2.0, 0.0], [0.0, 0.0]]), weft.tensor([0, 1])
        expected = (math.log(1 + math.exp(-2)) + math.log(2)) / 2
        self.assertAlmostEqual(nn.CrossEntropyLoss()(logits, labels).item(), expected, places=6)
        weighted = nn.CrossEntropyLoss(weft.tensor([1.0, 3.0]), reduction="sum")
        self.assertAlmostEqual(weighted(logits, labels).item(), math.log(1 + math.exp(-2)) + 3 * math.log(2), places=6)
        self.assertEqual(list(weighted.state_dict()), ["weight"])
        self.assertEqual(list(nn.CrossEntropyLoss().state_dict()), [])
        self.assertEqual(nn.MSELoss(reduction="sum")(weft.ones(3), weft.zeros(3)).item(), 3)
        with self.assertRaisesRegex(weft.Error, "reduction is mean, sum or none"):
            F.mse_loss(logits, logits, "median")


def train(make, steps=30):
    weft.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = make(model)
    x = weft.randn(64, 4)
    y = x.sum(1, keepdim=True).tanh()
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class Optimizers(unittest.TestCase):
    def test_each_learns(self):
        for make in (
            lambda m: optim.AdamW(m.parameters(), lr=0.03),
            lambda m: optim.Adam(m.named_parameters(), lr=0.03, betas=(0.8, 0.99)),
            lambda m: optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True),
        ):
            losses = train(make)
            self.assertLess(losses[-1], losses[0] / 3)
        for name in optim.optimizer_names():
            self.assertIn("lr", optim.optimizer_options(name))
            losses = train(lambda m: optim.make_optimizer(name, m.parameters()), steps=2)
            self.assertNotEqual(losses[0], losses[1])

    def test_groups_and_errors(self):
        m = Mlp(4, 8)
        o = optim.AdamW([{"params": [m.scale], "lr": 0.5, "betas": (0.5, 0.6)}, {"params": m.fc1.parameters()}], lr=0.1)
        self.assertEqual([g["lr"] for g in o.param_groups], [0.5, 0.1])
        self.assertEqual(o.param_groups[0]["beta2"], 0.6)
        o.param_groups[1]["lr"] = 0.2
        self.assertEqual(o.param_groups[1]["lr"], 0.2)
        self.assertTrue(o.param_groups[0]["params"][0].is_same(m.scale))
        with self.assertRaisesRegex(weft.Error, "momentum"):
            optim.make_optimizer("adamw", m.parameters(), momentum=0.9)
        with self.assertRaisesRegex(weft.Error, "twice"):
            optim.SGD([m.scale, m.scale])
        with self.assertRaisesRegex(weft.Error, "read-only"):
            optim.SGD([weft.as_tensor(memoryview(b"\0" * 8).cast("f"))])

    def test_states_continue_a_run(self):
        weft.manual_seed(0)
        m = nn.Linear(3, 1)

        def step(o):
            o.zero_grad()
            (m(weft.ones(2, 3)) ** 2).sum().backward()
            o.step()

        o = optim.AdamW(m.named_parameters(), lr=0.1)
        step(o)
        kept = {k: v.clone() for k, v in o.state_dict()["state"].items()}
        weights = {k: v.clone() for k, v in m.state_dict().items()}
        groups = o.state_dict()["param_groups"]
        step(o)
        expected = m.weight.tolist()
        m.load_state_dict(weights)
        o = optim.AdamW(m.named_parameters(), lr=0.7)
        o.load_state_dict({"state": kept, "param_groups": groups})
        step(o)
        self.assertEqual(m.weight.tolist(), expected)

    def test_schedules(self):
        o = optim.SGD([weft.ones(1, requires_grad=True)], lr=2.0)
        s = optim.lr_scheduler.LambdaLR(o, lambda step: 0.5**step)
        s.step()
        self.assertEqual(o.lr, 1.0)
        o.lr = 1.0
        s = optim.lr_scheduler.CosineAnnealingLR(o, 10)
        for _ in range(10):
            s.step()
        self.assertAlmostEqual(o.lr, 0)
        self.assertEqual(s.step_count, 10)
        with self.assertRaisesRegex(TypeError, "Scheduler: expected a number .* for step 0, got 'x', a str"):
            optim.lr_scheduler.LambdaLR(o, lambda step: "x")

    def test_one_cycle_moves_the_momentum(self):
        weight = weft.ones(1, requires_grad=True)
        for make, option in ((optim.SGD, "momentum"), (optim.AdamW, "beta1")):
            o = make([weight])
            s = optim.lr_scheduler.OneCycleLR(o, 1.0, 10)
            seen = [(o.lr, o.param_groups[0][option])]
            for _ in range(9):
                s.step()
                seen.append((o.lr, o.param_groups[0][option]))
            for step, (lr, momentum) in {0: (0.04, 0.95), 1: (0.52, 0.9), 2: (1, 0.85), 9: (4e-6, 0.95)}.items():
                self.assertAlmostEqual(seen[step][0], lr)
                self.assertAlmostEqual(seen[step][1], momentum)
            self.assertAlmostEqual(seen[3][1], 0.95 - 0.05 * (1 + math.cos(math.pi / 7)))
            again = make([weight])
            optim.lr_scheduler.OneCycleLR(again, 1.0, 10).load_state_dict(s.state_dict())
            self.assertEqual(again.param_groups[0].options, o.param_groups[0].options)
        o = optim.SGD([weight], momentum=0.5)
        optim.lr_scheduler.OneCycleLR(o, 1.0, 10, cycle_momentum=False)
        self.assertEqual(o.param_groups[0]["momentum"], 0.5)

    def test_clipping_and_loss_scaling(self):
        p = weft.tensor([3.0, 4.0], requires_grad=True)
        (p * p).sum().backward()
        self.assertEqual(weft.nn.utils.clip_grad_norm_([p], 1.0), 10.0)
        self.assertAlmostEqual(p.grad[1].item(), 0.8, places=5)
        p.grad = weft.tensor([3.0, 4.0])
        self.assertEqual(weft.nn.utils.grad_norm(p), 5.0)  # of one that stands alone, too
        self.assertEqual(weft.nn.utils.clip_grad_norm_(p, 1.0), 5.0)
        self.assertAlmostEqual(p.grad[1].item(), 0.8, places=5)
        weft.nn.utils.clip_grad_value_(p, 0.5)
        self.assertEqual(p.grad.tolist(), [0.5, 0.5])
        scaler = weft.amp.GradScaler(init_scale=8.0)
        o = optim.SGD([p], lr=1.0)
        p.grad = None
        scaler.scale((p * 1).sum()).backward()
        self.assertEqual(p.grad.tolist(), [8.0, 8.0])
        self.assertTrue(scaler.step(o))
        scaler.update()
        self.assertEqual(p.tolist(), [2.0, 3.0])
        p.grad = weft.tensor([math.inf, 0.0])
        self.assertFalse(scaler.step(o))
        scaler.update()
        self.assertEqual(scaler.get_scale(), 4.0)


def grey_png(rows):
    """A PNG file of rows of grey bytes."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + bytes(row) for row in rows))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b""))


class Data(unittest.TestCase):
    def test_images_that_are_no_squares_are_cropped_and_not_stretched(self):
        with tempfile.TemporaryDirectory() as folder:
            for split in ("train", "val"):
                os.makedirs(os.path.join(folder, split, "bars"))
                with open(os.path.join(folder, split, "bars", "1.png"), "wb") as file:
                    file.write(grey_png([[0] * 4 + [255] * 4 + [0] * 4] * 4))
            images, _, _ = weft.data.open("folder:" + folder)
            (middle, _), = weft.data.Loader(images, 1, size=4)
            self.assertEqual(middle.tolist(), weft.ones(1, 3, 4, 4).tolist())
            loader = weft.data.Loader(images, 1, size=4, augmentation={"random_crop": True})
            means = {x.mean().item() for _ in range(20) for x, _ in loader}
            self.assertGreater(len(means), 2)

    def test_batches_and_models(self):
        images, validation, test = weft.data.open("builtin", 1)
        image, label = images[0]
        self.assertEqual((image.shape, image.dtype), ((32, 32, 3), weft.uint8))
        self.assertTrue(0 <= label < len(images.class_names))
        loader = weft.data.Loader(test, 64, shuffle=True, drop_last=True, augmentation={"flip": True})
        batches = [labels.tolist() for _, labels in loader]
        self.assertEqual(len(batches), len(loader))
        self.assertNotEqual([labels.tolist() for _, labels in loader], batches)
        loader.position = (0, 2)
        x, labels = next(loader)
        self.assertEqual(labels.tolist(), batches[2])
        with self.assertRaisesRegex(weft.Error, "unknown augmentation"):
            weft.data.Loader(test, 8, augmentation={"blur": 1})
        self.assertIn("vit_b_16", weft.models.names())
        model = weft.models.make("cct", classes=10, image_size=32)
        self.assertEqual(model(x[:2]).shape, (2, 10))
        self.assertEqual(model.encoder.layers[0].ln_1.weight.shape, (128,))
        with self.assertRaisesRegex(weft.Error, "vit_b_16"):
            weft.models.make("vgg")

    def test_an_iteration_begins_an_epoch_or_goes_on_where_it_was_told(self):
        dataset, text = weft.data.TensorDataset(weft.arange(6)), bytes(range(60))
        loaders = [weft.data.TensorLoader(dataset, batch_size=2, shuffle=True, seed=3),
                   weft.data.Loader(weft.data.open("builtin", 1)[2], 100, shuffle=True, size=4),
                   weft.data.RandomWindowLoader(text, batch_size=4, length=5)]
        fabric = weft.train.Fabric()
        fabric.launch()
        shared = fabric.setup_dataloader(loaders[0])
        for loader, told in [(each, each) for each in loaders] + [(shared, loaders[0])]:
            with self.subTest(type(loader).__name__):
                rows = lambda iterable: [batch[-1].tolist() for batch in iterable]
                told.position = (0, 0)
                epochs = [rows(loader) for _ in range(3)]
                self.assertNotEqual(epochs[0], epochs[1])
                told.position = (0, 0)
                for batch in loader:
                    break
                self.assertEqual(rows(loader), epochs[1])
                told.position = (0, 0)
                self.assertEqual(rows(batch for _, batch in zip(epochs[0], loader)), epochs[0])
                self.assertEqual(rows(loader), epochs[1])
                # What was told is gone on with, by an iterator in two loops, too.
                told.position = (1, 1)
                iter(loader)
                iterator = iter(loader)
                self.assertEqual(rows(batch for batch, _ in zip(iterator, "a")), epochs[1][1:2])
                self.assertEqual(rows(iterator), epochs[1][3:])
                self.assertEqual(rows(iterator), [])
                self.assertEqual(rows(loader), epochs[2])
                left = iter(loader)
                iter(loader)
                with self.assertRaisesRegex(weft.Error, "expected a loader for each"):
                    next(left)

    def test_the_loop_of_the_example_is_that_of_cpp(self):
        program = os.path.join("examples", "plain_training")
        if not os.path.exists(program):
            self.skipTest("examples/plain_training is not built")
        with tempfile.TemporaryDirectory() as folder:
            path = [os.path.join(folder, name) for name in ("cpp", "python")]
            said = [
                subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=120, check=True).stdout
                for words in ([program, path[0]], [sys.executable, program + ".py", path[1]])
            ]
            self.assertEqual(len(said[0].splitlines()), 10)
            self.assertEqual(said[0], said[1])
            states = [weft.load_file(p) for p in path]
            self.assertEqual(states[0].keys(), states[1].keys())
            for name, tensor in states[0].items():
                self.assertEqual(tensor.tolist(), states[1][name].tolist())


if __name__ == "__main__":
    unittest.main()
