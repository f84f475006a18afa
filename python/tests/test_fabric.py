"""Fabric by the words of Lightning's and Accelerate's programs: calls of a model, options, collectives, figures."""

import collections
import copy
import dataclasses
import functools
import gc
import inspect
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest
import venv
import weakref
from typing import NamedTuple
from unittest import mock

import weft
from optional import needs_numpy, numpy
from weft import nn, optim
from weft.nn import functional as F
from weft.train import Fabric, from_environment

# A model of several inputs and outputs; what a step leaves of it, or what the strategy says.
CALLS = """
    import sys
    import weft
    from weft import nn, optim
    from weft.nn import functional as F

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 8), nn.Linear(8, 2)

        def forward(self, x, mask=None, *, more=None):
            h = F.gelu(self.a(x))
            if mask is not None:
                h = h * mask
            if more is not None:
                h = h + more["shift"][0]
            return {"hidden": (h, h.sum()), "out": self.b(h), "rows": len(x)}

        def structure(self):
            return nn.ModelStructure(units=nn.Linear, segments=[nn.Segment("a", self.a), nn.Segment("b", self.b)])

    fabric = weft.train.Fabric(devices=int(sys.argv[1]), strategy=sys.argv[2], precision="64-true")
    fabric.launch()
    fabric.seed_everything(1)
    model = Pair()
    optimizer = optim.SGD(model.named_parameters(), lr=0.5)
    fabric.setup(model, optimizer)
    try:
        y = model(weft.ones(4, 3), mask=weft.full((8,), 2.0), more={"shift": [weft.tensor(0.5)]})
    except TypeError as error:
        fabric.print(error)
    else:
        # The loss of the second step has nothing of one of the outputs.
        for loss in (lambda y: y["out"].sum() + y["hidden"][1], lambda y: y["out"].mean()):
            optimizer.zero_grad()
            y = model(weft.ones(4, 3), weft.full((8,), 2.0))
            fabric.backward(loss(y))
            optimizer.step()
        weights = sum(x.abs().sum().item() for x in model.state_dict().values())
        (_, total), out = y["hidden"], y["out"]
        fabric.print(y["rows"], out.dtype, type(y["hidden"]).__name__, f"{total.item():.9f} {weights:.9f}")
"""

COLLECTIVES = """
    import os
    import sys
    import weft

    fabric = weft.train.Fabric(devices=2, strategy="ddp")
    fabric.launch()
    rank = fabric.global_rank
    fabric.print(fabric.local_rank, fabric.data_size, fabric.data_rank, fabric.data_devices)

    mine = {"x": weft.tensor([rank + 1.0]), "both": (rank, [rank + 0.5])}
    whole = fabric.all_reduce(mine, reduce_op="sum")
    fabric.print(whole["x"].tolist(), whole["both"][0].item(), whole["both"][1][0].item())
    fabric.print(fabric.all_reduce(rank).item(), fabric.all_reduce(weft.tensor([rank]), "max").tolist())
    all = fabric.all_gather(mine)
    fabric.print(all["x"].tolist(), all["both"][0].tolist(), all["both"][1][0].tolist())

    predictions, labels, loss = fabric.gather_for_metrics((weft.full((2,), float(rank)), weft.tensor([rank]), rank / 4))
    fabric.print(predictions.tolist(), labels.tolist(), loss.tolist())

    said = fabric.broadcast({"from": rank, "text": "abc"} if rank == 1 else None, src=1)
    fabric.print(said)
    x = weft.tensor([float(rank)])
    fabric.print(fabric.broadcast(x, source=1) is x, x.tolist())

    with fabric.rank_zero_first():
        path = os.path.join(sys.argv[1], "made")
        if rank == 0:
            open(path, "w").close()
        found = os.path.exists(path)
    fabric.print(fabric.all_gather(found).tolist())

    batches = [weft.full((2,), rank + i) for i in (0, 10)]
    loader = fabric.setup_dataloaders(batches, use_distributed_sampler=False)
    fabric.print(len(loader), [fabric.gather_for_metrics(x).tolist() for x in loader])
"""

# What is no tensor goes with its rows; classes and a number are each batch's own.
LISTS = """
    import weft

    fabric = weft.train.Fabric(devices=3, strategy="ddp")
    fabric.launch()

    def named(rows, of=3):
        x = weft.tensor([float(i) for i in rows])
        return {"x": x, "names": [f"n{i}" for i in rows], "sizes": tuple((i, i) for i in rows),
                "classes": ["cat", "dog", "eel", "fox", "gnu", "hen", "ibis"], "of": of}

    for batch in fabric.setup_dataloaders([named(range(i, min(i + 4, 19))) for i in range(0, 19, 4)]):
        lists = [fabric.all_gather(weft.tensor([len(batch[key])])).tolist() for key in ("names", "sizes", "classes")]
        pairs = zip(batch["x"].tolist(), batch["names"], batch["sizes"])
        fabric.print(*lists, all(f"n{int(x)}" == name and size == (x, x) for x, name, size in pairs), batch["of"])
    for last in (named(range(2), of=4), named(range(2), of=3) | {"names": ["a"]}):
        try:
            list(fabric.setup_dataloaders([named(range(4)), last]))
        except weft.Error as error:
            fabric.print(str(error).split("expected")[1])
"""

# What the source has comes everywhere, whatever the other rank has in its place.
BROADCASTS = """
    import weft

    fabric = weft.train.Fabric(devices=2, strategy="ddp")
    fabric.launch()
    rank = fabric.global_rank

    def everywhere(mine, otherwise):
        got = fabric.broadcast(mine if rank == 0 else otherwise)
        fabric.print(type(got).__name__, fabric.all_gather(got).tolist())

    everywhere(weft.tensor([1.0, 2.0, 3.0]), None)
    everywhere(weft.tensor([5]), weft.zeros(2))
    everywhere(3, weft.zeros(2))
    # In memory that cannot be written as it comes there is no place for it.
    everywhere(weft.tensor([[0, 1, 2], [3, 4, 5]]).T, weft.zeros(2, 3, dtype=weft.int64).T)
    text = weft.as_tensor(b"abc")
    everywhere(weft.as_tensor(b"xyz"), text)
    fabric.print(fabric.all_gather(text).tolist())
    everywhere(weft.tensor([[6, 7]]), weft.zeros(1, 1, dtype=weft.int64).expand(1, 2))
    with fabric.init_module(empty_init=True):
        blank = weft.nn.Linear(1, 2, bias=False).weight
    everywhere(weft.tensor([[8.0], [9.0]]), blank)
    # A strided one takes it in place.
    base = weft.zeros(2, 2)
    got = fabric.broadcast(weft.tensor([[1.0, 2.0], [3.0, 4.0]]) if rank == 0 else base.T)
    fabric.print(fabric.all_gather(base).tolist(), got.tolist())
    for refused in (lambda: 1, blank):
        try:
            fabric.broadcast(refused if rank == 0 else None)
        except Exception as error:
            fabric.print(fabric.all_gather(isinstance(error, weft.Error)).tolist(), fabric.broadcast(str(error), src=1))
"""

ENVIRONMENT = """
    import os
    import sys
    import weft

    fabric = weft.train.Fabric(devices=2, strategy="ddp")
    fabric.launch()
    fabric.print(fabric.all_gather(os.path.samefile(sys.prefix, sys.argv[1])).tolist())
"""


# What copy.deepcopy() makes of a model that was set up computes as the model, or is an Error.
COPIES = """
    import copy
    import sys
    import weft
    from weft import nn, optim

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 8), nn.Linear(8, 2)

        def forward(self, x):
            return self.b(self.a(x))

        def structure(self):
            return nn.ModelStructure(units=nn.Linear, mlps=[(self.a, self.b)],
                                     segments=[nn.Segment("a", self.a), nn.Segment("b", self.b)])

    fabric = weft.train.Fabric(devices=2, strategy=sys.argv[1])
    fabric.launch()
    fabric.seed_everything(1)
    model = Pair()
    optimizer = optim.SGD(model.named_parameters(), lr=0.5)
    fabric.setup(model, optimizer)
    x = weft.ones(4, 3)
    fabric.backward(model(x).sum())
    optimizer.step()
    outer = nn.Module()
    outer.model = model
    for copied in (lambda: copy.deepcopy(model), lambda: copy.deepcopy(outer).model):
        try:
            fabric.print((copied()(x) - model(x)).abs().max().item() < 1e-6)
        except weft.Error as error:
            fabric.print(error)
"""


class Probe(nn.Module):
    """Keeps what it was called with."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(3, 2)

    def forward(self, *arguments, **options):
        self.seen = (arguments, options)
        return self.result() if hasattr(self, "result") else self.line(arguments[0])


class Both(NamedTuple):
    loss: weft.Tensor
    rest: list


def launched(**options):
    fabric = Fabric(**options)
    fabric.launch()
    fabric.seed_everything(1)
    return fabric


def set_up(**options):
    fabric = launched(**options)
    model = nn.Linear(3, 2)
    optimizer = optim.SGD(model.named_parameters(), lr=0.1)
    return fabric, *fabric.setup(model, optimizer)


class Steps(weft.train.Logger):
    def __init__(self):
        super().__init__()
        self.said = []

    def log_metrics(self, metrics, step):
        self.said.append((step, metrics))


class Programs(unittest.TestCase):
    def run_program(self, text, *arguments, python=sys.executable):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "program.py")
            with open(path, "w") as file:
                file.write(textwrap.dedent(text))
            run = subprocess.run(
                [python, path, *(arguments or [directory])], stdout=subprocess.PIPE, text=True, timeout=120,
                env=dict(os.environ, OMP_NUM_THREADS="1"),
            )
        self.assertEqual(run.returncode, 0)
        return run.stdout.splitlines()

    def test_a_model_takes_and_gives_what_it_likes(self):
        (alone,) = self.run_program(CALLS, "1", "auto")
        self.assertTrue(alone.startswith("4 weft.float64 tuple "), alone)
        for strategy in ("ddp", "fsdp", "zero2"):
            self.assertEqual(self.run_program(CALLS, "2", strategy), [alone], strategy)
        for strategy in ("dp", "pipeline"):
            (refused,) = self.run_program(CALLS, "2", strategy)
            for part in (r"Pair\(.*Tensor, mask=.*Tensor, more=dict\): expected one tensor",
                         f"strategy {strategy} calls", "train with ddp, fsdp or tp"):
                self.assertRegex(refused, part)

    def test_copies_are_of_whole_models(self):
        for strategy in ("ddp", "zero2"):
            self.assertEqual(self.run_program(COPIES, strategy), ["True"] * 2, strategy)
        for strategy in ("tp", "fsdp", "pipeline"):
            said = self.run_program(COPIES, strategy)
            self.assertEqual(len(said), 2, said)
            for line in said:
                self.assertRegex(line, "deepcopy: expected a model whose tensors are whole, got a __main__.Pair that was "
                                       f"set up with strategy {strategy}; copy it before setup")

    def test_collectives_take_collections_and_numbers(self):
        self.assertEqual(self.run_program(COLLECTIVES), [
            "0 2 0 2", "[3.0] 1 2.0", "0.5 [1]", "[[1.0], [2.0]] [0, 1] [0.5, 1.5]",
            "[0.0, 0.0, 1.0, 1.0] [0, 1] [0.0, 0.25]", "{'from': 1, 'text': 'abc'}", "True [1.0]", "[1, 1]",
            "2 [[0, 0, 1, 1], [10, 10, 11, 11]]",
        ])

    def test_lists_are_shared_out_with_the_samples_that_they_are_of(self):
        whole = "[[7], [7], [7]] True 3"
        self.assertEqual(self.run_program(LISTS), [
            f"[[4], [4], [4]] [[4], [4], [4]] {whole}", f"[[3], [2], [2]] [[3], [2], [2]] {whole}",
            " their part 15 to have as many, or to be the same in both, got 3 and 4",
            " their part 3 to have as many, or to be the same in both, got ['n0', 'n1', 'n2', 'n3'] and 'a'",
        ])

    def test_a_broadcast_is_what_the_source_has(self):
        self.assertEqual(self.run_program(BROADCASTS), [
            "Tensor [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]", "Tensor [[5], [5]]", "int [3, 3]",
            "Tensor [[[0, 3], [1, 4], [2, 5]], [[0, 3], [1, 4], [2, 5]]]",
            "Tensor [[120, 121, 122], [120, 121, 122]]", "[[97, 98, 99], [97, 98, 99]]",
            "Tensor [[[6, 7]], [[6, 7]]]", "Tensor [[[8.0], [9.0]], [[8.0], [9.0]]]",
            "[[[0.0, 0.0], [0.0, 0.0]], [[1.0, 3.0], [2.0, 4.0]]] [[1.0, 2.0], [3.0, 4.0]]",
            "[0, 1] broadcast: rank 0 has an object that cannot be pickled, or a tensor without memory",
            "[1, 1] broadcast: rank 0 has an object that cannot be pickled, or a tensor without memory",
        ])

    def test_ranks_are_in_the_programs_environment(self):
        with tempfile.TemporaryDirectory() as directory:
            venv.create(directory, symlinks=True)
            python = os.path.join(directory, "bin", "python")
            self.assertEqual(self.run_program(ENVIRONMENT, directory, python=python), ["[1, 1]"])


class Calls(unittest.TestCase):
    def test_tensors_are_cast_wherever_they_are(self):
        fabric, model = launched(precision="bf16-true"), Probe()
        fabric.setup(model)
        x, tokens, mask = weft.ones(2, 3), weft.tensor([1, 2]), weft.tensor([True, False])
        model.result = lambda: Both(model.line(model.seen[0][0]), [weft.zeros(1, dtype="bf16"), tokens, "text", None])
        y = model(x, [tokens, {"a": x}], mask, None, 3, scale=(x, 0.5))
        arguments, options = model.seen
        self.assertEqual(arguments[0].dtype, weft.bfloat16)
        self.assertIs(arguments[1][0], tokens)
        self.assertEqual(arguments[1][1]["a"].dtype, weft.bfloat16)
        self.assertEqual((arguments[2].dtype, arguments[3:]), (weft.bool, (None, 3)))
        self.assertEqual((options["scale"][0].dtype, options["scale"][1]), (weft.bfloat16, 0.5))
        # What comes back is wide, in containers of its own kind.
        self.assertIsInstance(y, Both)
        self.assertEqual((y.loss.dtype, y.rest[0].dtype, y.rest[1].dtype), (weft.float32, weft.float32, weft.int64))
        self.assertEqual(y.rest[2:], ["text", None])
        # Bytes are an image where they come first, and else a mask of some kind.
        image = weft.zeros(2, 3, dtype=weft.uint8)
        model(image, image)
        self.assertEqual([x.dtype for x in model.seen[0]], [weft.bfloat16, weft.uint8])

    def test_containers_are_of_their_own_class(self):
        class Items(dict):
            __getattr__ = dict.__getitem__

        class Attributes(dict):
            def __init__(self, *arguments, **items):
                super().__init__(*arguments, **items)
                self.__dict__ = self

        class Pair(tuple):
            logits = property(lambda self: self[0])

        class Rows(list):
            pass

        @dataclasses.dataclass(frozen=True)
        class Output:
            logits: weft.Tensor
            text: str = "text"

        fabric, model = launched(precision="bf16-true"), Probe()
        fabric.setup(model)
        x = weft.ones(2, 3)

        def called(result):
            model.result = result
            return model(x, result())

        def line():
            return model.line(weft.ones(2, 3, dtype="bf16"))

        named = Items(logits=line(), rest=[1])
        named.note = "kept"
        counted = collections.defaultdict(list, logits=line())
        for result in (lambda: named, lambda: Attributes(logits=line()), lambda: Pair([line(), 1]),
                       lambda: Output(line()), lambda: Both(line(), [])):
            y = called(result)
            self.assertIs(type(y), type(result()))
            self.assertEqual((y.loss if isinstance(y, Both) else y.logits).dtype, weft.float32)
        y = called(lambda: named)
        self.assertEqual((y.note, named.logits.dtype), ("kept", weft.bfloat16))
        self.assertIs(y.rest, named.rest)
        y = called(lambda: counted)
        self.assertEqual((y["logits"].dtype, y["other"]), (weft.float32, []))
        y = called(lambda: Rows([line(), Output(line())]))
        self.assertIs(type(y), Rows)
        self.assertEqual((y[0].dtype, y[1].logits.dtype, y[1].text), (weft.float32, weft.float32, "text"))
        # What goes in, too; an argument without tensors is the caller's own.
        cache, settings = {}, Output(None)
        model.result = lambda: model.line(model.seen[0][0].logits)
        model(Output(x), cache, settings)
        self.assertEqual(model.seen[0][0].logits.dtype, weft.bfloat16)
        self.assertIs(model.seen[0][1], cache)
        self.assertIs(model.seen[0][2], settings)

    def test_containers_that_hold_themselves(self):
        fabric, model = launched(), Probe()
        fabric.setup(model)
        endless, named, deep = [], {}, []
        endless.append(endless)
        named["itself"] = named
        for _ in range(100000):
            deep = [deep]
        x = weft.ones(1, 3)
        for call in (lambda: model(x, endless), lambda: model(x, more=named), lambda: model(x, deep),
                     lambda: fabric.all_reduce(endless), lambda: fabric.to_device(named),
                     lambda: list(fabric.setup_dataloaders([endless]))):
            with self.assertRaisesRegex(RecursionError, "in nested containers"):
                call()
        model.result = lambda: endless
        with self.assertRaises(RecursionError):
            model(x)

    def test_what_needs_no_cast_is_handed_on_as_it_is(self):
        fabric, model = launched(), Probe()
        fabric.setup(model)
        cache, x = [], weft.ones(2, 3)
        model.result = lambda: model.seen[0][1].append(x) or cache
        self.assertIs(model(x, cache), cache)
        self.assertIs(model.seen[0][0], x)
        self.assertIs(cache[0], x)

    def test_gradients_of_every_result(self):
        fabric, model = launched(), Probe()
        optimizer = optim.SGD(model.named_parameters(), lr=1.0)
        fabric.setup(model, optimizer)
        model.result = lambda: (model.line(model.seen[1]["x"]), model.line.bias.sum())
        before = model.line.bias.tolist()
        rows, total = model(x=weft.ones(4, 3))
        fabric.backward(rows.mean() + total)
        self.assertTrue(optimizer.step())
        for old, new in zip(before, model.line.bias.tolist()):
            self.assertAlmostEqual(old - new, 1.5, places=5)

    def test_functions_of_a_model_return_collections(self):
        fabric, model = launched(precision="bf16-mixed"), Probe()
        fabric.setup(model)
        both = fabric.forward(model, lambda: {"x": model.line(weft.ones(2, 3)), "n": 2})
        self.assertEqual((both["x"].dtype, both["n"]), (weft.float32, 2))
        with self.assertRaisesRegex(TypeError, "forward: expected a tensor from the function, got a dict"):
            fabric.forward(model, lambda: {"n": 2})
        fabric.forward(model, weft.ones(2, 3), scale=weft.ones(1))
        self.assertEqual(list(model.seen[1]), ["scale"])

    def test_dp_hands_one_tensor_on(self):
        fabric, model = launched(devices=2, strategy="dp"), Probe()
        fabric.setup(model)
        self.assertEqual(model(weft.ones(4, 3)).shape, (4, 2))
        for call in (lambda: model([1, 2]), lambda: model(weft.ones(4, 3), 1), lambda: model(x=weft.ones(4, 3)),
                     lambda: fabric.forward(model, weft.ones(4, 3), 1)):
            with self.assertRaisesRegex(TypeError, r"Probe\(.*\): expected one tensor: strategy dp calls a model as"):
                call()
        with self.assertRaisesRegex(weft.Error, "dp: a model is called as model.x. alone.*ddp"):
            fabric.forward(model, lambda: (weft.ones(1), 1))

        class Pair(Probe):
            def forward(self, x):
                return x, self.line(x)

        fabric, model = launched(devices=2, strategy="dp"), Pair()
        fabric.setup(model)
        with self.assertRaisesRegex(TypeError, r"Pair.forward\(\): expected a tensor, got a tuple: .*strategies dp"):
            model(weft.ones(4, 3))

    def test_what_is_no_tensor_is_named(self):
        class Pair(nn.Module):
            def forward(self, x):
                return x, x

        with self.assertRaisesRegex(TypeError, r"Pair.forward\(\): expected a tensor, got a tuple: .*a Sequential"):
            nn.Sequential(Pair(), nn.ReLU())(weft.ones(2))
        fabric, model, _ = set_up()
        with self.assertRaisesRegex(TypeError, "(?s)incompatible function arguments.*Tensor.*Linear, list"):
            model([1, 2])
        large = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
        nn.dispatch_model(large, {"": "cpu"})
        with self.assertRaisesRegex(TypeError, "Sequential.*: expected one tensor: a model that was dispatched"):
            large(weft.ones(1, 3), 2)


class Own(nn.Module):
    """All of its parameters are its own."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(weft.randn(64, 64))

    def forward(self, x):
        return x @ self.weight


class Forward(unittest.TestCase):
    X = weft.randn(8, 64)

    def refused(self, model, why="it would not run in bf16-mixed"):
        text = rf"fabric: forward\(\) of the model .*{type(model).__name__} was called from outside of the model"
        with self.assertRaisesRegex(weft.Error, f"{text}, where {why}; call model.x., or fabric.forward"):
            model.forward(self.X)

    def set_up(self, model, **options):
        fabric = launched(**options)
        fabric.setup(model, optim.SGD(model.named_parameters(), lr=0.1))
        return fabric

    def test_it_is_called_in_a_call_of_the_model(self):
        model = Own()
        wide = model.forward(self.X)
        fabric = self.set_up(model, precision="bf16-mixed")
        narrow = model(self.X)
        self.assertGreater((narrow - wide).abs().max().item(), 0)
        self.refused(model)
        self.assertEqual(fabric.forward(model, lambda: model.forward(self.X)).tolist(), narrow.tolist())
        with fabric.autocast():
            self.assertEqual(model.forward(self.X).tolist(), narrow.tolist())
        self.assertEqual(list(inspect.signature(model.forward).parameters), ["x"])
        # A copy is a model like any other.
        twin = copy.deepcopy(model)
        with weft.no_grad():
            twin.weight.mul_(2.0)
        self.assertEqual(twin.forward(self.X).tolist(), (2.0 * wide).tolist())
        gone, forward = weakref.ref(model), model.forward
        del model
        self.assertIsNone(gone())
        with self.assertRaisesRegex(weft.Error, "Own.forward.*expected to be called while its model is there"):
            forward(self.X)

    def test_of_classes_below_others_and_of_layers(self):
        class Twice(Own):
            def forward(self, x, *, times=2):
                return super().forward(x) * times

        class Line(nn.Linear):
            def forward(self, x):
                return super().forward(x).relu()

        for model in (Twice(), Line(64, 2), nn.Linear(64, 2)):
            fabric = self.set_up(model, precision="bf16-mixed")
            self.refused(model)
            fabric.backward(model(self.X).sum())
            self.assertIsNotNone(model.weight.grad)
        model = Own()
        _engine, *_ = weft.train.initialize(model=model, config={
            "train_batch_size": 8, "bf16": {"enabled": True}, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}})
        self.refused(model, "it would not run in .*bf16.*")

    def test_of_one_that_is_wrapped(self):
        def wrapped(model):
            forward = model.forward

            @functools.wraps(forward)
            def call(x):
                calls.append(model)
                return forward(x)

            model.forward = call

        calls, before, after = [], Own(), Own()
        wrapped(before)
        fabrics = [self.set_up(model, precision="bf16-mixed") for model in (before, after)]
        wrapped(after)
        for model in (before, after):
            model(self.X)
            self.refused(model)
        self.assertEqual(calls[:2], [before, after])
        self.assertEqual(len(fabrics), 2)

    def test_where_nothing_is_lost_it_runs(self):
        model = Own()
        _fabric = self.set_up(model)
        self.assertEqual(model.forward(self.X).tolist(), model(self.X).tolist())
        model = Own()
        _fabric = self.set_up(model, devices=2, strategy="dp")
        self.refused(model, "strategy dp does not know of it")
        self.assertEqual(model(self.X).shape, (8, 64))


class Options(unittest.TestCase):
    def test_lightnings_words(self):
        self.assertEqual(str(launched(accelerator="cpu", devices=1).device), "cpu")
        self.assertEqual(launched(accelerator="auto", device="cpu").world_size, 1)
        with self.assertRaisesRegex(weft.Error, 'accelerator: expected cpu, cuda, gpu or auto, got "tpu"'):
            Fabric(accelerator="tpu")
        with self.assertRaisesRegex(weft.Error, "expected one of accelerator and device, got cpu and cuda:1"):
            Fabric(accelerator="cpu", device="cuda:1")
        for precision, scales in ((16, True), (32, False), ("16-mixed", True), ("64", False)):
            self.assertEqual(Fabric(precision=precision).scaler.is_enabled(), scales)
        with self.assertRaisesRegex(weft.Error, 'precision: "8" is not one of'):
            Fabric(precision=8)

    def test_an_unknown_one_has_a_suggestion(self):
        with self.assertRaisesRegex(TypeError, 'Fabric: unknown option "presicion"; did you mean "precision"'):
            Fabric(presicion="bf16")
        with self.assertRaisesRegex(TypeError, r"Fabric: devices: unexpected 1.5, of type float"):
            Fabric(devices=1.5)
        with self.assertRaisesRegex(TypeError, "Fabric: expected keyword arguments alone, got 1 without a name"):
            Fabric("cpu")
        with self.assertRaisesRegex(TypeError, 'Gpt: unknown option "layer"; did you mean "layers"'):
            weft.models.Gpt(layer=2)

    def test_no_devices_are_an_error(self):
        for devices in (0, "0"):
            with self.assertRaisesRegex(weft.Error, 'devices: expected a positive number, "auto" or -1, got 0'):
                Fabric(devices=devices)
        with mock.patch.dict(os.environ, WEFT_DEVICES="0"):
            with self.assertRaisesRegex(weft.Error, "WEFT_DEVICES: devices: expected a positive number"):
                from_environment()
        with mock.patch.dict(os.environ, WEFT_NUM_NODES="x"):
            with self.assertRaisesRegex(weft.Error, 'WEFT_NUM_NODES: expected a number from 1 to 65536, got "x"'):
                from_environment()

    def test_the_environment(self):
        self.assertEqual(from_environment(devices=1, loggers=[]), {"devices": 1, "loggers": []})
        given = {"WEFT_DEVICES": "2", "WEFT_STRATEGY": "fsdp", "WEFT_PRECISION": "bf16-mixed", "WEFT_DEVICE": "cpu"}
        with mock.patch.dict(os.environ, given):
            options = from_environment(accelerator="gpu", strategy=weft.train.StrategyOptions("ddp", wrap="Linear"))
            self.assertEqual((options["strategy"].name, options["strategy"].wrap), ("fsdp", "Linear"))
            self.assertEqual((options["devices"], options["precision"], options["device"]), (2, "bf16-mixed", "cpu"))
            self.assertNotIn("accelerator", options)
            Fabric(**options)
        with mock.patch.dict(os.environ, WEFT_DEVICES="auto"):
            self.assertEqual(from_environment()["devices"], "auto")
        with mock.patch.dict(os.environ, WEFT_DEVICES="0,2"):
            self.assertEqual(from_environment()["devices"], [0, 2])

    def test_scales(self):
        scaler = Fabric(precision=16, initial_loss_scale=128, loss_scale_window=3, loss_scale_growth=4,
                        loss_scale_backoff=0.25).scaler
        state = scaler.state_dict()
        self.assertEqual((state["scale"], state["growth_interval"]), (128.0, 3))
        self.assertEqual((state["growth_factor"], state["backoff_factor"]), (4.0, 0.25))
        self.assertFalse(Fabric(precision=16, loss_scale="none").scaler.is_enabled())
        with self.assertRaisesRegex(weft.Error, 'loss_scale: expected "dynamic", "none" or a number, got "high"'):
            Fabric(precision=16, loss_scale="high")

        fabric, model, optimizer = set_up(precision="16-mixed", loss_scale=64)
        self.assertEqual(fabric.scaler.get_scale(), 64)
        fabric.backward((model(weft.ones(1, 3)) * float("inf")).sum())
        self.assertIs(optimizer.step(), False)
        self.assertTrue(optimizer.was_skipped)
        self.assertEqual(fabric.scaler.get_scale(), 64)  # stays

        Fabric(precision="fp8", fp8_scaling="delayed", fp8_history=16, fp8_margin=1)
        with self.assertRaisesRegex(weft.Error, 'fp8_scaling: expected one of "current", "delayed", got "late"'):
            Fabric(precision="fp8", fp8_scaling="late")
        with self.assertRaisesRegex(weft.Error, "history"):
            Fabric(precision="fp8", fp8_history=0)
        Fabric(precision="tf32", tf32_rounding="nearest")

    def test_one_logger_or_callback(self):
        class Hook:
            def on_end(self):
                self.called = True

        steps, hook = Steps(), Hook()
        fabric = launched(loggers=steps, callbacks=hook)
        fabric.call("on_end")
        self.assertTrue(hook.called)
        self.assertIs(fabric.logger, steps)
        self.assertEqual(len(fabric.loggers), 1)
        self.assertIsNone(launched(loggers=None, callbacks=None).logger)
        self.assertEqual(len(launched(loggers=(Steps(), steps)).loggers), 2)
        with self.assertRaisesRegex(TypeError, "Fabric: loggers: unexpected 'here', of type str"):
            Fabric(loggers="here")


class Loop(unittest.TestCase):
    def test_figures_count_themselves(self):
        steps = Steps()
        fabric = launched(loggers=steps)
        fabric.log("loss", 1.0)
        fabric.log_dict({"loss": weft.tensor(0.5), "lr": 0.1})
        fabric.log("loss", 0.25, step=7)
        fabric.log("loss", 0.125)
        self.assertEqual([step for step, _ in steps.said], [0, 1, 7, 8])
        self.assertEqual(steps.said[1][1], {"loss": 0.5, "lr": 0.1})
        for wrong, said in (({"norm": None}, '"norm": expected a number, .* got None, a NoneType'),
                            ({"a": {"b": 1}}, '"a": expected a number, .* a dict'),
                            ({1: 2}, "expected texts as the names, got 1, a int")):
            with self.assertRaisesRegex(TypeError, "log_dict: " + said):
                fabric.log_dict(wrong)

        class Silent(weft.train.Logger):
            pass

        with self.assertRaisesRegex(weft.Error, r"expected a method log_metrics\(metrics, step\).*Silent does not"):
            launched(loggers=Silent()).log("loss", 1.0)

    def test_clipping(self):
        def clipped(**how):
            fabric, model, optimizer = set_up()
            fabric.backward((model(weft.tensor([[1.0, 2.0, 3.0]])) * 10).sum())
            norm = fabric.clip_gradients(model, optimizer, **how)
            return norm, model.weight.grad

        norm, gradient = clipped(max_norm=1.0)
        self.assertAlmostEqual(norm, (2 * 100 * 15) ** 0.5, places=3)
        self.assertLess(abs(gradient[0, 0].item() - 10 / norm), 1e-5)
        norm, gradient = clipped(clip_val=15.0)
        self.assertIsNone(norm)
        self.assertEqual(gradient.tolist(), [[10.0, 15.0, 15.0]] * 2)
        fabric, model, optimizer = set_up()
        self.assertEqual(fabric.clip_gradients(optimizer, 1.0), 0)
        self.assertEqual(fabric.clip_gradients(optimizer, max_norm=1.0), 0)
        for how in ({}, {"max_norm": 1.0, "clip_val": 1.0}):
            with self.assertRaisesRegex(TypeError, "expected one of max_norm and clip_val"):
                fabric.clip_gradients(model, optimizer, **how)
        with self.assertRaisesRegex(weft.Error, "norm_type: expected 2, got 1"):
            fabric.clip_gradients(optimizer, 1.0, norm_type=1.0)
        fabric.backward((model(weft.ones(1, 3)) * float("inf")).sum())
        with self.assertRaisesRegex(weft.Error, "the norm of the gradients is (inf|-?nan)"):
            fabric.clip_gradients(model, optimizer, max_norm=1.0, norm_type=2.0, error_if_nonfinite=True)
        other = nn.Linear(1, 1)
        with self.assertRaisesRegex(weft.Error, "a model that was not set up"):
            fabric.clip_gradients(other, optimizer, max_norm=1.0)
        with self.assertRaisesRegex(weft.Error, "an optimizer that was not set up"):
            fabric.clip_gradients(optim.SGD(other.named_parameters(), lr=0.1), clip_val=1.0)

    def test_collectives_of_a_process_alone(self):
        fabric = launched()
        x = weft.tensor([1.0, 2.0])
        self.assertEqual(fabric.all_reduce(x).tolist(), [1.0, 2.0])
        self.assertIsNot(fabric.all_reduce(x, reduce_op="sum"), x)
        self.assertEqual(fabric.all_gather({"n": 3, "x": [0.5]})["x"][0].tolist(), [0.5])
        self.assertEqual(fabric.gather_for_metrics((x, 0.25))[1].tolist(), [0.25])
        self.assertEqual(fabric.broadcast("text", src=0), "text")
        with self.assertRaisesRegex(weft.Error, "broadcast: expected a rank below 1, got 2"):
            fabric.broadcast("text", src=2)
        with self.assertRaisesRegex(weft.Error, 'a reduction is sum, mean, max or min, got "median"'):
            fabric.all_reduce(x, reduce_op="median")
        for gather in (fabric.all_reduce, fabric.all_gather, fabric.gather_for_metrics):
            with self.assertRaisesRegex(TypeError, f"{gather.__name__}: expected tensors and numbers, .* got a str"):
                gather([x, "text"])
        with self.assertRaises(ZeroDivisionError):
            with fabric.rank_zero_first(local=True):
                1 / 0

    def test_paths_are_paths(self):
        fabric, model, optimizer = set_up()
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "state.safetensors"
            fabric.save(path, {"model": model, "epoch": 3})
            state = {"model": model, "epoch": 0}
            self.assertEqual(fabric.load(path, state), [])
            self.assertEqual(state["epoch"], 3)
            fabric.save(path)
            fabric.load(path)
            for kind in ("full", "sharded"):
                fabric, model, optimizer = set_up(state_dict_type=kind)
                done = []
                path = pathlib.Path(directory) / kind
                fabric.async_save(path, {"model": model, "note": [1]}, then=lambda: done.append(kind))
                fabric.wait_for_save()
                self.assertEqual(done, [kind])
                self.assertEqual(fabric.load(path, {"model": model}), ["note"])

    def test_a_save_under_way_is_completed_when_the_program_ends(self):
        program = """
            import sys
            import weft
            fabric = weft.train.Fabric(state_dict_type="sharded")
            fabric.launch()
            model = weft.nn.Linear(1000, 1000)
            model, optimizer = fabric.setup(model, weft.optim.SGD(model.named_parameters(), lr=0.1))
            fabric.async_save(sys.argv[1], {"model": model, "epoch": 3}, then=lambda: print("complete"))
        """
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "state")
            self.assertEqual(Programs.run_program(self, program, path), ["complete"])
            state = {"epoch": 0}
            launched().load(path, state)
            self.assertEqual(state, {"epoch": 3})

    def test_a_loader_that_knows_of_the_ranks_by_itself(self):
        fabric = launched(gradient_accumulation_steps=2)
        loader = fabric.setup_dataloaders([weft.ones(2), weft.ones(1)], use_distributed_sampler=False)
        self.assertEqual(len(loader), 2)
        last = []
        for _ in loader:
            last.append((fabric.latest_batch.is_last, fabric.latest_batch.fillers))
        self.assertEqual(last, [(False, 0), (True, 0)])
        dataset = weft.data.TensorDataset(weft.arange(3))
        tensors = fabric.setup_dataloader(weft.data.TensorLoader(dataset, batch_size=2), use_distributed_sampler=False)
        self.assertEqual([x.tolist() for x, in tensors], [[0, 1], [2]])

    def test_models_live_as_long_as_their_optimizers(self):
        fabric, model = launched(), Probe()
        optimizer = optim.SGD(model.named_parameters(), lr=0.1)
        fabric.setup(model, optimizer)
        gone = weakref.ref(model)
        loss = model(weft.ones(1, 3)).sum()
        del model
        gc.collect()
        self.assertIsNotNone(gone())
        fabric.backward(loss)
        self.assertTrue(optimizer.step())
        del optimizer, loss
        gc.collect()
        self.assertIsNone(gone())
        model = fabric.setup_module(Probe())
        optimizer = fabric.setup_optimizers(optim.SGD(model.named_parameters(), lr=0.1))
        gone = weakref.ref(model)
        del model
        gc.collect()
        self.assertIsNotNone(gone())
        del optimizer
        gc.collect()
        self.assertIsNone(gone())

    def test_a_setup_that_fails_has_changed_nothing(self):
        fabric, model, other = launched(), Probe(), nn.Linear(2, 2)
        optimizer = optim.SGD(model.named_parameters(), lr=0.1)
        taken = fabric.setup(other, optim.SGD(other.named_parameters(), lr=0.1))[1]
        stepped = optim.SGD(model.named_parameters(), lr=0.1)
        model(weft.ones(1, 3)).sum().backward()
        stepped.step()
        foreign = optim.SGD(nn.Linear(2, 2).named_parameters(), lr=0.1)
        for wrong, said in ((foreign, '"weight" of the optimizer is of no model'), (taken, "was set up already"),
                            (stepped, "before its first step")):
            with self.assertRaisesRegex(weft.Error, said):
                fabric.setup(model, optimizer, wrong)
        with self.assertRaisesRegex(weft.Error, r"setup\(\) of one SGD twice"):
            fabric.setup(model, optimizer, optimizer)
        self.assertEqual(fabric.setup(model, optimizer), (model, optimizer))
        another = optim.SGD(model.named_parameters(), lr=0.1)
        with self.assertRaisesRegex(weft.Error, r"setup\(\) of one SGD twice"):
            fabric.setup_optimizers(another, another)
        self.assertIs(fabric.setup_optimizers(another), another)
        # With a loss scale an optimizer has its parameters alone.
        scaled, probe = launched(precision="16-mixed"), Probe()
        whole, bias = (optim.SGD(some, lr=0.1) for some in (probe.named_parameters(), [probe.line.bias]))
        for optimizers in ((whole, bias), (bias, whole)):
            with self.assertRaisesRegex(weft.Error, "is in another optimizer, too: in 16-mixed"):
                scaled.setup(probe, *optimizers)
        scaled.setup(probe, whole)
        # Of a model that was set up and one that is to be.
        new = nn.Linear(2, 2)
        both = [*new.named_parameters(), *(("other." + name, x) for name, x in other.named_parameters())]
        fabric.setup(new, optim.SGD(both, lr=0.1))

    def test_words_of_lightnings_that_change_nothing_here(self):
        fabric, x = launched(), weft.tensor([1.0, 2.0], requires_grad=True)
        self.assertEqual(fabric.all_reduce(x, None, "sum").tolist(), [1.0, 2.0])
        self.assertEqual(fabric.all_reduce(x, reduce_op="avg", group=None).tolist(), [1.0, 2.0])
        self.assertTrue(fabric.all_gather(x, group=None, sync_grads=True).requires_grad)
        self.assertFalse(fabric.all_gather(x, None, False).requires_grad)
        for collective in (fabric.all_reduce, fabric.all_gather):
            with self.assertRaisesRegex(TypeError, f"{collective.__name__}: group: expected None, .* got a str"):
                collective(x, group="some")
        fabric.barrier("loaded")
        fabric.barrier(name=None)
        self.assertEqual((fabric.node_rank, fabric.strategy.name), (0, "auto"))
        self.assertEqual(Fabric(devices=2, strategy="fsdp").strategy.name, "fsdp")

        model, other = nn.Linear(3, 2), nn.Linear(3, 2).to("cpu:1")
        model = fabric.setup(model, move_to_device=False)
        fabric.backward(model(weft.ones(1, 3)).sum(), model=model, retain_graph=False)
        self.assertEqual(model.bias.grad.tolist(), [1.0, 1.0])
        loss = model(weft.ones(1, 3)).sum()
        with self.assertRaisesRegex(weft.Error, r"backward\(\) of a model that was not set up"):
            fabric.backward(loss, model=other)
        with self.assertRaisesRegex(weft.Error, "retain_graph: expected False"):
            fabric.backward(loss, retain_graph=True)
        with self.assertRaisesRegex(weft.Error, 'move_to_device=False: expected a model on cpu, .* "weight" on cpu:1'):
            fabric.setup_module(other, move_to_device=False)
        fabric.setup_module(other)
        self.assertEqual(str(other.weight.device), "cpu")

    def test_seeds(self):
        fabric = launched()
        self.assertEqual(fabric.seed_everything(7), 7)
        expected = weft.rand(2).tolist()
        with mock.patch.dict(os.environ, PL_GLOBAL_SEED="7"):
            self.assertEqual(fabric.seed_everything(), 7)
        self.assertEqual(weft.rand(2).tolist(), expected)
        with mock.patch.dict(os.environ, PL_GLOBAL_SEED="7th"):
            with self.assertRaisesRegex(weft.Error, 'PL_GLOBAL_SEED: expected a number, got "7th"'):
                fabric.seed_everything()
        with mock.patch.dict(os.environ):
            os.environ.pop("PL_GLOBAL_SEED", None)
            self.assertEqual(fabric.seed_everything(workers=True), 0)

    def test_batches_that_stay_where_they_are(self):
        fabric, away = launched(), weft.ones(2, 3).to("cpu:1")
        dataset = weft.data.TensorDataset(weft.arange(3))
        for moves, place in ((True, "cpu"), (False, "cpu:1")):
            (batch,) = fabric.setup_dataloaders([{"x": away}], move_to_device=moves)
            self.assertEqual(str(batch["x"].device), place)
            tensors = fabric.setup_dataloader(weft.data.TensorLoader(dataset, batch_size=2), move_to_device=moves)
            self.assertEqual([x.tolist() for x, in tensors], [[0, 1], [2]])

    def test_some_of_a_state(self):
        class Meter:
            def state_dict(self):
                return {"mean": 1.5, "count": 3}

            def load_state_dict(self, state):
                self.state = state

        def biases(name, tensor):
            self.assertIsInstance(tensor, weft.Tensor)
            return "bias" in name

        for kind in ("full", "sharded"):
            with self.subTest(kind), tempfile.TemporaryDirectory() as directory:
                path = pathlib.Path(directory) / "state"
                fabric, model, optimizer = set_up(state_dict_type=kind)
                meter, bias = Meter(), model.bias.tolist()
                state = {"model": model, "meter": meter, "dict": {"a": 1, "b": [2]}, "epoch": 3}
                fabric.save(path, state, filter={"model": biases, "meter": lambda name, value: value > 2,
                                                 "dict": lambda name, value: name == "b"})
                other = nn.Sequential(nn.Linear(3, 2))[0]
                fabric.setup_module(other)
                weight = other.weight.tolist()
                with self.assertRaisesRegex(weft.Error, "missing.*weight"):
                    fabric.load(path, {"model": other})
                loaded = {"model": other, "meter": meter, "dict": None, "best": 0.5}
                with self.assertRaisesRegex(weft.Error, 'no state "best"'):
                    fabric.load(path, loaded)
                self.assertEqual(fabric.load(path, loaded, strict=False), ["epoch"])
                self.assertEqual((other.bias.tolist(), other.weight.tolist()), (bias, weight))
                self.assertEqual((meter.state, loaded["dict"], loaded["best"]), ({"count": 3}, {"b": [2]}, 0.5))
                # All of a model that is saved, into one that has more, and less.
                fabric.save(path, {"model": model, "epoch": 3})
                larger = fabric.setup_module(Probe())
                larger.line.bias = weft.zeros(2)
                with self.assertRaisesRegex(weft.Error, "bias"):
                    fabric.load(path, {"model": larger})
                self.assertEqual(fabric.load(path, {"model": larger}, strict=False), ["epoch"])
                self.assertEqual(larger.line.bias.tolist(), [0.0, 0.0])
                self.assertEqual(fabric.load(path, {"model": other}, strict=False), ["epoch"])
                self.assertEqual(other.weight.tolist(), model.weight.tolist())

                for wrong, error, said in (
                    ({"optimizer": biases}, TypeError, 'filter: the state "optimizer", a .*Optimizer: expected'),
                    ({"epoch": biases}, TypeError, 'filter: the state "epoch", a int: expected a model'),
                    ({"other": biases}, ValueError, "expected keys of the state, got 'other'"),
                    ({"model": "bias"}, TypeError, "expected a function of a name and a value for 'model', got a str"),
                ):
                    with self.assertRaisesRegex(error, said):
                        fabric.save(path, {"model": model, "optimizer": optimizer, "epoch": 3}, filter=wrong)
        with self.assertRaisesRegex(TypeError, "filter: expected a state"):
            fabric.save(path, filter={})
        with self.assertRaisesRegex(TypeError, "strict=False: expected a state"):
            fabric.load(path, strict=False)

    def test_tensors_of_a_file_alone(self):
        fabric, model, optimizer = set_up()
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "model.safetensors"
            weft.save_file({"weight": weft.ones(2, 3), "bias": weft.zeros(2)}, str(path))
            fabric.load_raw(path, model)
            self.assertEqual(model(weft.ones(1, 3)).tolist(), [[3.0, 3.0]])
            weft.save_file({"bias": weft.ones(2), "more": weft.ones(1)}, str(path))
            with self.assertRaisesRegex(weft.Error, "weight"):
                fabric.load_raw(path, model)
            self.assertIsNone(fabric.load_raw(path, model, strict=False))
            self.assertEqual(model(weft.ones(1, 3)).tolist(), [[4.0, 4.0]])
            with self.assertRaisesRegex(TypeError, "load_raw: expected a model, got a .*Optimizer"):
                fabric.load_raw(path, optimizer)

    def test_devices_of_things(self):
        fabric = launched()
        x, model = weft.ones(2), nn.Linear(1, 1)
        moved = fabric.to_device({"x": x, "more": [x, "text"]})
        self.assertEqual((moved["x"].tolist(), moved["more"][1]), ([1.0, 1.0], "text"))
        self.assertIs(fabric.to_device(model), model)
        self.assertEqual((fabric.local_rank, fabric.data_size, fabric.data_rank), (0, 1, 0))

    @needs_numpy
    def test_numpys_arrays_and_numbers(self):
        fabric = launched()
        self.assertEqual(fabric.to_device(numpy.ones(2, "float32")).dtype, weft.float32)
        self.assertEqual(fabric.all_gather(numpy.float64(0.5)).tolist(), [0.5])

    def test_models_without_memory(self):
        fabric = launched()
        with fabric.init_module(empty_init=True):
            model = nn.Linear(3, 2)
        with self.assertRaisesRegex(weft.Error, "meta device"):
            model.weight.tolist()
        fabric.setup(model, optim.SGD(model.named_parameters(), lr=0.1))
        model.load_state_dict({"weight": weft.ones(2, 3), "bias": weft.zeros(2)})
        self.assertEqual(model(weft.ones(1, 3)).tolist(), [[3.0, 3.0]])
        with fabric.init_module():
            self.assertEqual(len(nn.Linear(3, 2).weight.tolist()), 2)

    def test_the_precision_outside_of_a_model(self):
        fabric = launched(precision="bf16-mixed")
        x = weft.ones(2, 2)
        with fabric.autocast():
            self.assertEqual((x @ x).dtype, weft.bfloat16)
        self.assertEqual((x @ x).dtype, weft.float32)

    def test_rounds_that_end_no_step(self):
        fabric, model, optimizer = set_up(gradient_accumulation_steps=2)
        seen = []
        for _ in range(2):
            with fabric.accumulate(model):
                fabric.backward(model(weft.ones(1, 3)).sum())
                seen.append((fabric.sync_gradients, optimizer.step()))
        self.assertEqual(seen, [(False, False), (True, True)])
        self.assertTrue(fabric.sync_gradients)

    def test_micro_batches_and_left_out_steps(self):
        rows = weft.tensor([[1.0, 2.0, 3.0], [-1.0, 0.5, 2.0]])
        _, model, optimizer = set_up()
        F.mse_loss(model(rows), weft.zeros(2, 2)).backward()
        optimizer.step()
        expected = model.weight

        fabric, model, optimizer = set_up(precision="16-mixed", initial_loss_scale=256)

        def part(i):
            return rows[i:i + 1], lambda y: fabric.scaled(F.mse_loss(y, weft.zeros(1, 2)) / 2)

        fabric.run([part(0), part(1)])
        self.assertGreater(fabric.unscale(optimizer), 0)
        self.assertTrue(fabric.step(optimizer))
        self.assertLess((model.weight - expected).abs().max().item(), 1e-2)
        for wrong in ([rows], [(rows, 3)], [(3, lambda y: y)]):
            with self.assertRaisesRegex(TypeError, "run: micro-batch 0: expected a tuple of a tensor and a function"):
                fabric.run(wrong)
        with self.assertRaisesRegex(TypeError, "run: micro-batch 0: expected a tensor from the loss, got a float"):
            fabric.run([(rows, lambda y: 0.5)])

        fabric, model, optimizer = set_up(precision="16-mixed", initial_loss_scale=256)
        before, done = model.weight.tolist(), []
        fabric.run([part(0), part(1)], accumulates=False, after_each=lambda: done.append(model.weight.grad))
        self.assertEqual(len(done), 2)
        fabric.skip_step()
        self.assertEqual((model.weight.tolist(), fabric.scaler.get_scale()), (before, 256))


if __name__ == "__main__":
    unittest.main()
