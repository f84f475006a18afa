"""What a class of modules written in Python says of itself, strategies that ask for it, and copies of modules."""

import copy
import gc
import os
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
import weakref

import weft
from weft import nn, optim
from weft.nn import functional as F


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Plain(nn.Module):
    """Classes of [B, tokens, 4]; a model that says nothing of itself."""

    def __init__(self, width=8):
        super().__init__()
        self.stem = nn.Linear(4, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(2)])
        self.scale = nn.Parameter(weft.ones(width))
        self.head = nn.Linear(width, 4)

    def embed(self, x):
        return self.stem(x)

    def classify(self, x):
        return self.head((x * self.scale).mean(1))

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.classify(x)


class Net(Plain):
    def structure(self):
        blocks = list(self.blocks)
        return nn.ModelStructure(
            units=Block,
            mlps=[(block.up, block.down) for block in blocks],
            tokens=nn.TokenRegion(blocks[0], blocks[1], blocks),
            head=self.head,
            segments=[
                nn.Segment("stem", self.embed),
                *(nn.Segment(f"blocks.{i}", block) for i, block in enumerate(blocks)),
                nn.Segment("head", lambda x: self.classify(x), owns=["scale", "head"]),
            ],
        )


class Gated(nn.Module):
    """Grouped attention and a gated MLP, of nn.Linear alone; tells by the features that it has how many heads."""

    WIDTH, HEADS, KV_HEADS = 8, 4, 2

    def __init__(self):
        super().__init__()
        size = self.WIDTH // self.HEADS
        self.qkv = nn.Linear(self.WIDTH, (self.HEADS + 2 * self.KV_HEADS) * size)
        self.out = nn.Linear(self.WIDTH, self.WIDTH)
        self.up, self.gate = nn.Linear(self.WIDTH, 16), nn.Linear(self.WIDTH, 16)
        self.down = nn.Linear(16, self.WIDTH)
        self.embed, self.head = nn.Linear(4, self.WIDTH), nn.Linear(self.WIDTH, 4)

    def forward(self, x):
        x = self.embed(x)
        parts = self.qkv(x).reshape(*x.shape[:2], -1, self.WIDTH // self.HEADS).transpose(1, 2)
        kv = parts.shape[1] // (self.HEADS // self.KV_HEADS + 2)
        q, k, v = parts[:, :-2 * kv], parts[:, -2 * kv:-kv], parts[:, -kv:]
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2).flatten(2))
        # By forward(), too, layers are called as they were cut.
        x = x + self.down.forward(F.silu(self.gate.forward(x)) * self.up(x))
        return self.head(x.mean(1))

    def structure(self):
        return nn.ModelStructure(linears=[
            nn.ParallelLinears([self.qkv], self.out, heads=self.HEADS, kv_heads=self.KV_HEADS),
            nn.ParallelLinears([self.up, self.gate], self.down),
        ])


PROGRAM = """
    import sys
    sys.path.insert(0, sys.argv[1])
    import weft
    from test_structure import Gated, Net, Plain
    from weft import nn, optim

    path, model, devices, strategy = *sys.argv[2:4], int(sys.argv[4]), sys.argv[5]
    settings = {name: value == "True" or value for name, value in (word.split("=") for word in sys.argv[6:])}
    strategy = weft.train.StrategyOptions(strategy, **settings)
    fabric = weft.train.Fabric(devices=devices, strategy=strategy)
    fabric.launch()
    fabric.seed_everything(1)
    model = {"Gated": Gated, "Net": Net, "Plain": Plain}[model]()
    optimizer = optim.SGD(model.named_parameters(), lr=0.1)
    fabric.setup(model, optimizer)
    weft.manual_seed(5)
    x, y = weft.randn(8, 3, 4), weft.tensor([0, 1, 2, 3] * 2)
    shares = 1 if strategy.name in ("tp", "pipeline", "dp", "auto") else devices
    mine = slice(fabric.global_rank % shares, None, shares)
    for step in range(3):
        optimizer.zero_grad()
        # With a parallel head a rank has some of the logits.
        fabric.backward(fabric.cross_entropy(fabric.forward(model, x[mine]), y[mine]))
        optimizer.step()
    fabric.save(path)
"""


class Strategies(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.program = os.path.join(self.folder, "program.py")
        with open(self.program, "w") as file:
            file.write(textwrap.dedent(PROGRAM))

    def run_program(self, *words):
        """What is said of errors, and the trained weights."""
        path = os.path.join(self.folder, "trained.safetensors")
        here = os.path.dirname(os.path.abspath(__file__))
        run = subprocess.run(
            [sys.executable, self.program, here, path, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, timeout=120, env=dict(os.environ, OMP_NUM_THREADS="1"),
        )
        if run.returncode:
            return run.stderr, {}
        return "", {name: tensor.clone() for name, tensor in weft.load_file(path).items()}

    def test_each_learns_what_one_device_learns(self):
        _, alone = self.run_program("Plain", "1", "auto")
        self.assertEqual(len(alone), 2 * 6 + 5)
        for words in (
            ("Net", "2", "tp"), ("Net", "2", "tp", "parallel_head=True"), ("Net", "2", "tp", "sequence_parallel=True"),
            ("Net", "2", "pipeline"), ("Net", "2", "fsdp"), ("Net", "2", "dp"),
            ("Plain", "2", "dp"), ("Plain", "2", "fsdp", "wrap=Block"), ("Plain", "2", "fsdp", "wrap=Linear,LayerNorm"),
        ):
            with self.subTest(words):
                said, shared = self.run_program(*words)
                self.assertEqual(said, "")
                self.assertEqual(alone.keys(), shared.keys())
                for name, tensor in alone.items():
                    # Sums of some tens of terms in another order, in three steps.
                    self.assertLess((tensor - shared[name]).abs().max().item(), 1e-5, name)

    def test_tp_cuts_what_is_made_of_linear_layers(self):
        _, alone = self.run_program("Gated", "1", "auto")
        said, shared = self.run_program("Gated", "2", "tp")
        self.assertEqual(said, "")
        self.assertEqual(alone.keys(), shared.keys())
        for name, tensor in alone.items():
            self.assertEqual(tensor.shape, shared[name].shape, name)
            self.assertLess((tensor - shared[name]).abs().max().item(), 1e-5, name)

    def test_errors_say_what_to_define(self):
        for words, said in (
            (("Gated", "4", "tp"), '4 ranks do not divide 4 heads, which share 2 of keys and values, of '
                                   'test_structure.Gated\'s "qkv.weight"'),
            (("Plain", "2", "tp"), "structure() names pairs of linear layers as mlps"),
            (("Plain", "2", "pipeline"), "2 stages cannot be made of 0 segments: the model's structure() names none"),
            (("Net", "2", "fsdp", "wrap=Bloc"), "no module of class Bloc; it has test_structure.Block, "
                                                "test_structure.Net, weft.nn.ModuleList, weft::nn::LayerNorm, weft::nn::Linear"),
        ):
            self.assertIn(said, self.run_program(*words)[0])


def dp(model, devices=2):
    fabric = weft.train.Fabric(devices=devices, strategy="dp")
    fabric.launch()
    fabric.setup(model, optim.SGD(model.named_parameters(), lr=0.1))
    return fabric


class Scale(nn.Module):
    def __init__(self, k=1.0):
        super().__init__()
        self.k, self.calls, self.weight = k, 0, nn.Parameter(weft.ones(4))

    def forward(self, x):
        self.calls += 1
        return x * self.weight * self.k


class Negative(Scale):
    def forward(self, x):
        return -super().forward(x)


class Replicas(unittest.TestCase):
    def check_alike(self, fabric, model, alone, x):
        for one in (model, alone):
            one.zero_grad()
        y, expected = model(x), alone(x)
        self.assertLess((y - expected).abs().max().item(), 1e-6)
        fabric.backward(y.pow(2).mean())
        expected.pow(2).mean().backward()
        ours, theirs = model.named_parameters(), alone.named_parameters()
        self.assertEqual([name for name, _ in ours], [name for name, _ in theirs])
        for (name, p), (_, q) in zip(ours, theirs):
            self.assertEqual(p.grad is None, q.grad is None, name)
            if q.grad is not None:
                most = 1e-6 * max(1, q.grad.abs().max().item())
                self.assertLess((p.grad - q.grad).abs().max().item(), most, name)

    def test_gradients_are_those_of_one(self):
        weft.manual_seed(2)
        for model in (Plain(), nn.Linear(4, 3), nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.RMSNorm(4))):
            x = weft.randn(6, 3, 4)
            alone = copy.deepcopy(model)
            alone(x).pow(2).mean().backward()
            fabric = dp(model)
            y = model(x)
            self.assertLess((y - alone(x)).abs().max().item(), 1e-6)
            fabric.backward(y.pow(2).mean())
            for (name, p), (_, q) in zip(model.named_parameters(), alone.named_parameters()):
                self.assertLess((p.grad - q.grad).abs().max().item(), 1e-6, name)

    def test_gradients_stay_with_modules_that_change_places(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

            def forward(self, x):
                return self.b(self.a(x).relu())

        model = Net()
        alone = copy.deepcopy(model)
        fabric = dp(model)
        x = weft.randn(4, 3)
        gradients = []
        for each in (alone, model):
            layers = each.a, each.b
            loss = each(x).pow(2).mean()
            each.a, each.b = each.b, each.a
            loss.backward() if each is alone else fabric.backward(loss)
            gradients.append([layer.weight.grad for layer in layers])
        for expected, got in zip(*gradients):
            self.assertLess((got - expected).abs().max().item(), 1e-6)

    def test_a_replica_of_the_programs_own(self):
        class Locked(Plain):
            def __init__(self, note):
                super().__init__()
                self.lock, self.note = threading.Lock(), note

        class Described(Locked):
            def structure(self):
                return nn.ModelStructure(replica=lambda: Described(self.note))

        model = Described("kept")
        fabric = dp(model)
        fabric.backward(model(weft.randn(4, 3, 4)).sum())
        self.assertIsNotNone(model.scale.grad)
        with self.assertRaisesRegex(
            weft.Error, r"replica of .*Locked is copy.deepcopy\(\)'s where its structure\(\) has none, "
                        "and it cannot be copied: TypeError: cannot pickle '_thread.lock' object"
        ):
            dp(Locked(""))

        class Wrong(Plain):
            def structure(self):
                return nn.ModelStructure(replica=lambda: "another")

        with self.assertRaisesRegex(TypeError, "replica: expected a module from its function, got str"):
            dp(Wrong())

    def test_attributes_follow_the_model(self):
        class Settings(nn.Module):
            def __init__(self):
                super().__init__()
                self.block, self.line, self.other = Block(4), nn.Linear(4, 2), nn.Linear(4, 2)
                self.block.power = 1
                self.alpha, self.used, self.calls, self.seen = 1.0, [self.line], 0, []

            def forward(self, x):
                self.calls += 1
                self.last = ("rows", x.shape[0])
                self.hidden = self.block(x) ** self.block.power
                self.seen.append(self.calls)
                return sum(line(self.hidden) for line in self.used) * self.alpha + getattr(self, "shift", 0)

        weft.manual_seed(6)
        x, model = weft.randn(4, 4), Settings()
        alone = copy.deepcopy(model)
        fabric = dp(model)
        changes = (
            lambda m: None, lambda m: setattr(m, "alpha", 2.0), lambda m: setattr(m.block, "power", 2),
            lambda m: setattr(m, "used", [m.other]), lambda m: setattr(m, "used", [m.line, m.other]),
            lambda m: setattr(m, "shift", weft.ones(2)), lambda m: setattr(m, "lock", threading.Lock()),
            lambda m: setattr(m, "extra", nn.Linear(4, 2)), lambda m: setattr(m, "used", [m.extra]),
            lambda m: delattr(m, "shift"),
        )
        for change in changes:
            for one in (model, alone):
                weft.manual_seed(8)
                change(one)
            self.check_alike(fabric, model, alone, x)
        # What forward() stores: numbers and texts of the first replica, which had half of the rows.
        self.assertEqual((model.calls, model.last), (len(changes), ("rows", 2)))
        self.assertEqual(model.seen, [])
        self.assertFalse(hasattr(model, "hidden"))
        model.calls = 20
        model(x)
        self.assertEqual(model.calls, 21)

    def test_what_holds_itself_follows_the_model(self):
        class Noted(nn.Module):
            def __init__(self):
                super().__init__()
                self.line = nn.Linear(4, 2)

            def forward(self, x):
                own, shared = [x.shape[0]], [x.shape[0]]
                own.append(own)
                for _ in range(40):
                    shared = [shared, shared]  # a walk through each of them has no end
                self.own, self.shared = own, shared
                return self.line(x) * self.note[1][0]

        x, model, note = weft.randn(4, 4), Noted(), [2.0]
        note.append(note)
        alone = copy.deepcopy(model)
        fabric = dp(model)
        self.addCleanup(sys.setrecursionlimit, sys.getrecursionlimit())
        sys.setrecursionlimit(10**6)
        for one in (model, alone):
            one.note = note
        self.check_alike(fabric, model, alone, x)
        self.assertFalse(hasattr(model, "own"))
        self.assertIs(model.shared[0], model.shared[1])

    def test_attributes_follow_modules_that_are_replaced(self):
        class Two(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = Scale(2.0), Scale(3.0)

            def forward(self, x):
                return self.second(self.first(x))

        class Parts(nn.Module):
            def __init__(self):
                super().__init__()
                self.line, self.act, self.part, self.net = nn.Linear(4, 4), nn.ReLU(), Scale(), nn.Sequential(nn.Tanh())
                self.list, self.dict = nn.ModuleList([Scale(2.0), Scale(3.0)]), nn.ModuleDict({"a": Scale(4.0)})
                self.active = self.list[0]

            def forward(self, x):
                x = self.active(self.net(self.part(self.act(self.line(x)))))
                for part in (*self.list, *self.dict.values()):
                    x = part(x)
                if hasattr(self, "gain"):
                    x = x * self.gain
                return x * self.mask if hasattr(self, "mask") else x

        def swap(m):
            a, b = m.list
            setattr(m.list, "0", b)
            setattr(m.list, "1", a)

        def replace(m):
            m.part = Negative(5.0)
            m.part.k = 6.0

        weft.manual_seed(6)
        x, model = weft.randn(4, 4), Parts()
        before, alone = model.part, copy.deepcopy(model)
        fabric = dp(model)
        for change in (
            lambda m: setattr(m, "part", Scale(5.0)), replace, lambda m: setattr(m, "act", nn.Tanh()),
            lambda m: m.dict.__setitem__("a", Negative(7.0)), lambda m: setattr(m, "active", m.list[1]), swap,
            lambda m: setattr(m.list[0], "k", 8.0), lambda m: setattr(m, "part", Two()),
            lambda m: m.list.append(Negative(2.0)), lambda m: m.net.append(Negative(3.0)),
            lambda m: m.register_buffer("mask", weft.tensor([1.0, 2.0, 0.0, 4.0])),
            lambda m: setattr(m, "mask", weft.tensor([1.0, 0.0, 3.0, 4.0])),
            lambda m: m.register_parameter("gain", nn.Parameter(weft.tensor([1.0, 2.0, 3.0, 4.0]))),
        ):
            for one in (model, alone):
                change(one)
            before.k = 9.0  # which is no part of it any more
            self.check_alike(fabric, model, alone, x)

    def test_what_is_trained_and_cannot_be_copied_does_not_follow(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.line, self.part, self.used = nn.Linear(4, 4), Scale(), []

            def forward(self, x):
                return self.part(self.line(x))

        class Locked(Scale):
            def __init__(self):
                super().__init__()
                self.lock = threading.Lock()

        model = Net()
        alone, part = copy.deepcopy(model), model.part
        fabric = dp(model)
        for name, value, text in (
            ("part", Locked(), ".*Locked"), ("used", [model.line, threading.Lock()], "builtins.list"),
            ("used", {"scale": (part.weight, threading.Lock())}, "builtins.dict"),
        ):
            with self.assertRaisesRegex(
                weft.Error, r"dp: expected what copy.deepcopy\(\) can copy .* modules or tensors that require a "
                            f"gradient, got a {text}: TypeError: cannot pickle '_thread.lock' object"
            ):
                setattr(model, name, value)
            self.assertIs(model.part, part)
            self.assertEqual(model.used, [])
            self.check_alike(fabric, model, alone, weft.randn(4, 4))
        model.used = [threading.Lock(), weft.ones(1)]
        self.check_alike(fabric, model, alone, weft.randn(4, 4))

    def test_a_replica_owns_what_its_attributes_refer_to(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.attention, self.used = nn.MultiheadAttention(64, 2), []

            def forward(self, x):
                x = self.attention(x)
                for part in self.used:
                    x = part(x)
                return x

        model, new = Net(), nn.MultiheadAttention(64, 2)
        alone = copy.deepcopy(model)
        fabric = dp(model)
        for one in (model, alone):
            one.used = [one.attention.out_proj]  # C++ has made it
            one.attention = copy.deepcopy(new)
        gc.collect()
        others = [nn.Linear(64, 7) for _ in range(40)]  # where it was
        self.check_alike(fabric, model, alone, weft.randn(4, 3, 64))
        self.assertEqual(len(others), 40)

    def test_attributes_follow_a_module_whose_name_another_takes(self):
        class Switch(nn.Module):
            def __init__(self):
                super().__init__()
                self.blocks = nn.ModuleList([Scale(), Scale()])
                self.active = self.blocks[0]

            def forward(self, x):
                self.active = self.blocks[1]
                return self.blocks[1](self.blocks[0](x))

        model = Switch()
        alone = copy.deepcopy(model)
        fabric = dp(model)
        for _ in range(3):
            self.check_alike(fabric, model, alone, weft.randn(4, 4))
        self.assertEqual([block.calls for block in model.blocks], [3, 3])

    def test_attributes_follow_each_model_that_a_module_is_of(self):
        class Student(nn.Module):
            def forward(self, x):
                return self.teacher(x)

        for teacher_is_first in (True, False):
            teacher, student = Scale(), Student()
            alone = copy.deepcopy(teacher)
            fabrics = [dp(teacher)] if teacher_is_first else []
            student.line = nn.Linear(1, 1)
            fabrics.append(weft.train.Fabric(devices=2, strategy="dp"))
            fabrics[-1].launch()
            fabrics[-1].setup(student, optim.SGD(student.line.named_parameters(), lr=0.1))
            student.teacher = teacher
            if not teacher_is_first:
                fabrics.append(dp(teacher))
            teacher.k = alone.k = 7.0
            x = weft.randn(4, 4)
            for model in (teacher, student):
                with weft.no_grad():
                    self.assertLess((model(x) - alone(x)).abs().max().item(), 1e-6)

    def test_what_forward_registers_stays_with_the_replica(self):
        class Lazy(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm, self.line = nn.BatchNorm2d(2), nn.Linear(4, 4)

            def forward(self, x):
                if not hasattr(self, "table"):
                    self.register_buffer("table", weft.ones(4) * 2)
                return self.line(self.norm(x) * self.table)

        model = Lazy()
        fabric = dp(model)
        for _ in range(2):
            fabric.backward(model(weft.randn(4, 2, 4, 4)).sum())
        self.assertFalse(hasattr(model, "table"))
        self.assertEqual(model.norm.num_batches_tracked.item(), 2)
        # Until the model registers its own.
        model.eval().register_buffer("table", weft.ones(4) * 3)
        alone = copy.deepcopy(model)
        self.check_alike(fabric, model, alone, weft.randn(4, 2, 4, 4))

        class Late(Scale):
            def forward(self, x):
                if not hasattr(self, "late"):
                    self.late = nn.Parameter(weft.ones(4))
                return super().forward(x) * self.late

        model = Late()
        fabric = dp(model)
        with weft.no_grad():
            model(weft.ones(2, 4))
        with self.assertRaisesRegex(weft.Error, "Late: expected as many parameters as its replicas have, 2, got 1"):
            model(weft.ones(2, 4))

    def test_attributes_follow_as_fast_in_a_model_of_many_modules(self):
        class Counting(nn.Module):
            def __init__(self, others):
                super().__init__()
                self.line = nn.Linear(4, 2)
                self.others = nn.Sequential(*(nn.Identity() for _ in range(others)))

            def forward(self, x):
                begin = time.perf_counter()
                for i in range(100):
                    self.count = i
                self.seconds = time.perf_counter() - begin
                return self.line(x)

        def seconds(others):
            model, times = Counting(others), []
            fabric = dp(model)
            for _ in range(5):
                y = model(weft.ones(1, 4))  # one row is the first copy's
                times.append(model.seconds)
            fabric.backward(y.sum())
            self.assertEqual(model.count, 99)
            return min(times)

        self.assertLess(seconds(1000), 10 * seconds(2))

    def test_a_training_module(self):
        class Steps(weft.train.TrainingModule):
            def __init__(self):
                super().__init__()
                self.net = Plain()

            def forward(self, x):
                return self.net(x)

            def training_step(self, batch, batch_idx):
                return F.cross_entropy(self(batch[0]), batch[1])

            def configure_optimizers(self):
                return optim.SGD(self.named_parameters(), lr=0.1)

        weft.manual_seed(4)
        x, y = weft.randn(8, 3, 4), weft.tensor([0, 1, 2, 3] * 2)

        def fit(**options):
            trainer = weft.train.Trainer(max_epochs=2, enable_progress_bar=False, enable_table=False,
                                         handle_signals=False, **options)
            trainer.launch()
            trainer.seed_everything(1)
            module = Steps()
            # With dp a batch holds the samples of all devices.
            size = 8 // options.get("devices", 1)
            trainer.fit(module, weft.data.TensorLoader(weft.data.TensorDataset(x, y), batch_size=size))
            return module.net.stem.weight

        self.assertLess((fit() - fit(devices=2, strategy="dp")).abs().max().item(), 1e-6)


class Structures(unittest.TestCase):
    def test_what_is_said_can_be_read(self):
        net = Net()
        s = net.structure()
        self.assertEqual([segment.name for segment in s.segments], ["stem", "blocks.0", "blocks.1", "head"])
        self.assertEqual([segment.owns for segment in s.segments][-2:], [["blocks.1"], ["scale", "head"]])
        self.assertIs(s.head, net.head)
        self.assertIs(s.mlps[1][0], net.blocks[1].up)
        self.assertIs(s.tokens.end, net.blocks[1])
        self.assertTrue(s.units("blocks.0", net.blocks[0]))
        self.assertFalse(s.units("head", net.head))
        self.assertIsNone(s.replica)
        x = y = weft.randn(2, 3, 4)
        for segment in s.segments:
            y = segment.forward(y)
        self.assertEqual(y.tolist(), net(x).tolist())
        empty = nn.Module().structure()
        self.assertEqual((empty.units, empty.mlps, empty.linears, empty.tokens, empty.head, empty.segments),
                         (None, [], [], None, None, []))
        gated = Gated()
        attention, mlp = gated.structure().linears
        self.assertEqual((attention.heads, attention.kv_heads, mlp.heads), (4, 2, 0))
        self.assertIs(attention.rows, gated.out)
        self.assertIs(mlp.columns[1], gated.gate)
        self.assertEqual(nn.Segment("head", gated.head, reads=["embed.weight"]).reads, ["embed.weight"])
        self.assertEqual(s.segments[0].reads, [])

    def test_of_cpps_models(self):
        model = weft.models.make("vit_lite", image_size=32, classes=4, layers=2)
        s = model.structure()
        self.assertEqual(len(s.segments), 4)
        self.assertEqual(s.head.weight.shape[0], 4)
        self.assertEqual(s.replica().state_dict().keys(), model.state_dict().keys())

    def test_what_it_shows_keeps_the_model(self):
        def make():
            return weft.models.make("cct", image_size=32, classes=4).structure()

        shown = [make().head, make().mlps[0][1], make().tokens.end]
        for _ in range(3):
            make()  # takes the memory of what is gone
        for module in shown:
            for name, tensor in module.state_dict().items():
                self.assertLess(tensor.abs().max().item(), 10, name)
        self.assertEqual(shown[0].weight.shape[0], 4)

    def test_a_sequential_adds_to_its_own(self):
        class Stack(nn.Sequential):
            def structure(self):
                s = super().structure()
                s.units = lambda name, module: name == "2"
                return s

        stack = Stack(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
        s = stack.structure()
        self.assertEqual(len(s.segments), 3)
        self.assertIs(s.mlps[0][1], stack[2])
        self.assertTrue(s.units("2", stack[2]))

    def test_mistakes_are_named(self):
        def refused(error, text, **said):
            class Said(Plain):
                def structure(self):
                    return nn.ModelStructure(**said)

            with self.assertRaisesRegex(error, text):
                dp(Said())

        refused(ValueError, r"Said.structure\(\): head: expected modules of the model, got another",
                head=nn.Linear(2, 2))
        refused(ValueError, r"Said.structure\(\): mlps: expected modules", mlps=[(nn.Linear(2, 2), nn.Linear(2, 2))])
        with self.assertRaisesRegex(TypeError, "units: expected classes, got 3"):
            nn.ModelStructure(units=[nn.Linear, 3])
        with self.assertRaisesRegex(TypeError, "units: expected classes of modules, or a function"):
            nn.ModelStructure(units=3)
        with self.assertRaisesRegex(TypeError, 'segment "a": forward: expected a module or a function'):
            nn.Segment("a", 3)

        class Nothing(Plain):
            def structure(self):
                return nn.ModelStructure(segments=[nn.Segment("a", lambda x: None, list(self.state_dict()))])

        model = nn.dispatch_model(Nothing().eval(), {"": "cpu"})
        with self.assertRaisesRegex(TypeError, 'segment "a": expected a tensor from its function, got NoneType'):
            model(weft.ones(1, 3, 4))

        class Wrong(Plain):
            def structure(self):
                return {"units": Block}

        with self.assertRaisesRegex(TypeError, r"Wrong.structure\(\): expected a weft.nn.ModelStructure, got dict"):
            dp(Wrong())

    def test_a_model_larger_than_memory(self):
        class Methods(Plain):
            def structure(self):
                return nn.ModelStructure(segments=[
                    nn.Segment("stem", self.embed), nn.Segment("blocks.0", self.blocks[0]),
                    nn.Segment("blocks.1", self.blocks[1]), nn.Segment("head", self.classify, ["scale", "head"])])

        model = Methods()
        x = weft.randn(2, 3, 4)
        with weft.no_grad():
            expected = model(x).tolist()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.safetensors")
            weft.save_file(model.state_dict(), path)
            with nn.init_empty_weights():
                model = Methods().eval()
            nn.load_checkpoint_and_dispatch(model, path, device_map={"stem": "cpu", "": "disk"})
            self.assertEqual(model(x).tolist(), expected)
            # Methods do not keep their model.
            gone = weakref.ref(model)
            del model
            gc.collect()
            self.assertIsNone(gone())
        with self.assertRaisesRegex(weft.Error, r"its structure\(\) names them as segments"):
            nn.infer_auto_device_map(Plain(), {"cpu": "1GB"})


class Copies(unittest.TestCase):
    def check(self, model, *inputs):
        twin = copy.deepcopy(model)
        self.assertIs(type(twin), type(model))
        ours, theirs = twin.state_dict(), model.state_dict()
        self.assertEqual(list(ours), list(theirs))
        for name, tensor in theirs.items():
            self.assertEqual((ours[name].dtype, ours[name].tolist()), (tensor.dtype, tensor.tolist()), name)
            if tensor.numel():
                self.assertNotEqual(ours[name].data_ptr(), tensor.data_ptr(), name)
        self.assertEqual([(n, p.requires_grad) for n, p in twin.named_parameters()],
                         [(n, p.requires_grad) for n, p in model.named_parameters()])
        self.assertEqual([(n, m.training) for n, m in twin.named_modules()],
                         [(n, m.training) for n, m in model.named_modules()])
        for x in inputs:
            self.assertEqual(twin(x).tolist(), model(x).tolist())
        return twin

    def test_every_layer(self):
        images, rows = weft.randn(2, 4, 6, 6), weft.randn(2, 3, 4)
        for layer, x in (
            (nn.Linear(4, 3), rows), (nn.Linear(4, 3, bias=False), rows), (nn.LayerNorm(4, eps=0.1), rows),
            (nn.RMSNorm(4, eps=0.1), rows), (nn.BatchNorm2d(4, momentum=0.5).eval(), images),
            (nn.Conv2d(4, 6, (3, 1), stride=2, padding=(1, 0), dilation=1, groups=2, bias=False), images),
            (nn.Embedding(5, 4), weft.tensor([0, 4])), (nn.Dropout(0.25).eval(), rows),
            (nn.DropPath(0.25).eval(), rows), (nn.GELU("tanh"), rows), (nn.ReLU(), rows), (nn.SiLU(), rows),
            (nn.Tanh(), rows), (nn.MaxPool2d(2, 1, 1, ceil_mode=True), images),
            (nn.AvgPool2d(3, 2, 1, count_include_pad=False), images), (nn.Flatten(0, 1), rows),
            (nn.Identity(), rows), (nn.MultiheadAttention(4, 2, bias=False, causal=True), rows),
            (nn.Sequential(nn.Linear(4, 4), nn.GELU("none")), rows), (nn.Softmax(-1), rows),
        ):
            with self.subTest(type(layer).__name__):
                self.check(layer, x)
        self.assertEqual((copy.deepcopy(nn.Dropout(0.25))._arguments(), copy.deepcopy(nn.DropPath(0.5))._arguments()),
                         ((0.25,), (0.5,)))

    def test_of_a_class_written_in_python(self):
        class Tied(Plain):
            def __init__(self):
                super().__init__()
                self.out = self.stem.weight
                self.register_buffer("calls", weft.zeros((), dtype=weft.int64))
                self.shortcut = [self.blocks[0], self.out]
                self.rotary = nn.RotaryPositions(4, 8)
                self.net = weft.models.make("vit_lite", image_size=32, classes=4, layers=1)
                self.attention = nn.MultiheadAttention(8, 2)
                self.projection = self.attention.out_proj

            def forward(self, x):
                self.calls += 1
                return super().forward(x) @ self.head.weight @ self.out

        weft.manual_seed(3)
        model = Tied()
        model.blocks[1].requires_grad_(False)
        model.blocks[0].eval()
        before = weft.rand(3).tolist()
        weft.manual_seed(3)
        Tied()
        twin = self.check(model, weft.randn(2, 3, 4))
        self.assertIsInstance(twin.net, weft.models.Classifier)
        self.assertTrue(twin.out.is_same(twin.stem.weight) and not twin.out.is_same(model.out))
        self.assertIs(twin.shortcut[0], twin.blocks[0])
        self.assertTrue(twin.shortcut[1].is_same(twin.stem.weight))
        self.assertIs(twin.rotary, model.rotary)
        self.assertTrue(twin.projection.weight.is_same(twin.attention.out_proj.weight))
        # A copy draws nothing.
        weft.manual_seed(3)
        copied = copy.deepcopy(Tied())
        self.assertEqual(weft.rand(3).tolist(), before)
        twin = copied
        del copied
        gc.collect()
        twin(weft.randn(2, 3, 4)).sum().backward()
        self.assertIsNotNone(twin.out.grad)
        self.assertIsNone(model.out.grad)

    def test_a_module_of_two_names(self):
        model = nn.Module()
        model.a = model.b = nn.Linear(2, 2)
        twin = self.check(model)
        self.assertEqual([name for name, _ in twin.named_children()], ["a", "b"])
        self.assertIs(twin.a, twin.b)

    def test_deeply_nested_modules(self):
        # To walk below each of them would take a minute.
        model = inner = nn.Module()
        for _ in range(3000):
            inner.part = nn.LayerNorm(1)
            inner.inner = nn.Module()
            inner = inner.inner
        inner.line = nn.Linear(2, 2)
        twin = copy.deepcopy(model)
        depth = 0
        while hasattr(twin, "inner"):
            twin, depth = twin.inner, depth + 1
        self.assertEqual(depth, 3000)
        self.assertEqual(twin.line.weight.tolist(), inner.line.weight.tolist())

    def test_of_what_has_no_memory(self):
        with nn.init_empty_weights():
            model = Plain()
        twin = copy.deepcopy(model)
        self.assertEqual(twin.stem.weight.shape, (8, 4))

    def test_a_part_of_cpps_model(self):
        model = weft.models.make("vit_lite", image_size=32, classes=4, layers=1)
        with self.assertRaisesRegex(TypeError, "expected the model that it belongs to, got a weft::models::EncoderBlock"):
            copy.deepcopy(model.encoder.layers[0])


if __name__ == "__main__":
    unittest.main()
