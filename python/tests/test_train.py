"""Fabric on one rank and on several; DeepSpeed's loop; the kernels' variants."""

import gc
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import types
import unittest
from typing import NamedTuple

import weft
from optional import needs_numpy, numpy
from weft import nn
from weft.nn import functional as F

# What the ranks say of a loader of the program's own, and of what they gather.
SHARES = """
    import weft
    from weft import nn

    fabric = weft.train.Fabric(devices=2, strategy="ddp")
    fabric.launch()
    batches = [{"x": weft.arange(3 * i, 3 * i + 3), "tag": i} for i in range(3)]
    loader = fabric.setup_dataloader(batches)
    for _ in range(2):
        seen = [(batch["x"], batch["tag"]) for batch in loader]
        fabric.print(len(loader), [(x.tolist(), tag) for x, tag in seen])
    fabric.print([fabric.gather_for_metrics(batch["x"]).tolist() for batch in loader])
    filled = fabric.setup_dataloader([weft.arange(1)])
    fabric.print([fabric.gather_for_metrics(x).tolist() for x in filled])

    x = weft.tensor([fabric.global_rank + 1.0], requires_grad=True)
    everybody = fabric.all_gather(x)
    # Rank r takes r + 1 times the sum of squares.
    ((everybody * everybody).sum() * (fabric.global_rank + 1)).backward()
    grads = fabric.all_gather(x.grad)
    fabric.print(everybody.tolist(), grads.tolist())
"""

PROGRAM = """
    import sys
    import weft
    from weft import nn, optim
    from weft.nn import functional as F

    fabric = weft.train.Fabric(devices=int(sys.argv[1]), strategy=sys.argv[2])
    fabric.launch()
    fabric.seed_everything(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.GELU(), nn.Linear(8, 4))
    optimizer = optim.AdamW(model.named_parameters(), lr=0.01)
    fabric.setup(model, optimizer)
    weft.manual_seed(5)
    x, y = weft.randn(8, 12), weft.tensor([0, 1, 2, 3] * 2)
    mine = slice(fabric.global_rank, None, fabric.world_size)
    for step in range(3):
        optimizer.zero_grad()
        fabric.backward(F.cross_entropy(model(x[mine]), y[mine]))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    loss = fabric.all_reduce(F.cross_entropy(model(x), y)).item()
    ranks = fabric.all_gather(weft.tensor([float(fabric.global_rank)])).flatten().tolist()
    fabric.print(fabric.world_size, f"{loss:.5f}", ranks)
    fabric.save(sys.argv[3])
"""


class Ranks(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.program = os.path.join(self.folder.name, "program.py")
        with open(self.program, "w") as file:
            file.write(textwrap.dedent(PROGRAM))

    def tearDown(self):
        self.folder.cleanup()

    def run_program(self, devices, strategy, *before):
        path = os.path.join(self.folder.name, f"{strategy}{devices}.safetensors")
        run = subprocess.run(
            [*before, sys.executable, self.program, str(devices), strategy, path],
            stdout=subprocess.PIPE, text=True, timeout=120, env=dict(os.environ, OMP_NUM_THREADS="1"),
        )
        self.assertEqual(run.returncode, 0)
        return run.stdout, weft.load_file(path)

    def test_ranks_learn_what_one_learns(self):
        alone, state = self.run_program(1, "auto")
        self.assertEqual(alone.split()[0], "1")
        for strategy in ("ddp", "zero1"):
            said, shared = self.run_program(2, strategy)
            self.assertEqual(said.split()[0], "2")
            self.assertIn("[0.0, 1.0]", said)
            self.assertAlmostEqual(float(said.split()[1]), float(alone.split()[1]), places=4)
            for name, tensor in state.items():
                self.assertLess((tensor - shared[name]).abs().max().item(), 1e-5)

    def test_five_lines_scale_a_program(self):
        paths = [os.path.join("examples", f"{kind}_training.py") for kind in ("plain", "scaled")]
        code = []
        for path in paths:
            with open(path) as file:
                code.append([line.split("#")[0].strip() for line in file.read().split('"""', 2)[2].splitlines()])
        differ = [line for line in code[1] if line not in code[0]]
        five = ["fabric = weft.train.Fabric(", "fabric.launch(", "fabric.setup(", "fabric.setup_dataloader(",
                "fabric.backward("]
        others = ["path = ", "devices, strategy, precision = ", "fabric.print(", "fabric.save("]
        self.assertEqual(sorted(differ), sorted(line for start in five + others
                                                for line in differ if line.startswith(start)))
        self.assertEqual(len(differ), len(five) + len(others))

        def train(program, *arguments):
            path = os.path.join(self.folder.name, "trained.safetensors")
            subprocess.run([sys.executable, program, path, *arguments], stdout=subprocess.DEVNULL, timeout=120,
                           check=True, env=dict(os.environ, OMP_NUM_THREADS="1"))
            return weft.load_file(path)

        plain = train(paths[0])
        for arguments, most in [((), 0), (("2", "ddp", "32-true"), 2e-4), (("2", "tp", "32-true"), 2e-4)]:
            for name, tensor in train(paths[1], *arguments).items():
                self.assertLessEqual((tensor - plain[name]).abs().max().item(), most, arguments)

    def test_shares_and_what_is_gathered(self):
        with open(self.program, "w") as file:
            file.write(textwrap.dedent(SHARES))
        run = subprocess.run(
            [sys.executable, self.program], stdout=subprocess.PIPE, text=True, timeout=120,
            env=dict(os.environ, OMP_NUM_THREADS="1"),
        )
        self.assertEqual(run.returncode, 0)
        # Two batches are taken at a time, and the last alone is cut.
        epoch = "2 [([0, 1, 2], 0), ([6, 7], 2)]"
        self.assertEqual(run.stdout.splitlines(), [
            epoch, epoch, "[[0, 1, 2, 3, 4, 5], [6, 7, 8]]", "[[0]]",
            "[[1.0], [2.0]] [[6.0], [12.0]]",
        ])

    def test_under_torchrun(self):
        # What torchrun sets for each of its processes.
        path = os.path.join(self.folder.name, "torchrun.safetensors")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        ranks = [
            subprocess.Popen(
                [sys.executable, self.program, "2", "ddp", path], stdout=subprocess.PIPE, text=True,
                env=dict(
                    os.environ, OMP_NUM_THREADS="1", RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2",
                    LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                ),
            )
            for rank in range(2)
        ]
        try:
            said = [process.communicate(timeout=120)[0] for process in ranks]
            self.assertEqual([process.returncode for process in ranks], [0, 0])
            self.assertTrue(said[0].startswith("2 ") and not said[1], said)
        finally:
            for process in ranks:
                process.kill()
                process.wait()

    @unittest.skipUnless(shutil.which("mpirun"), "mpirun is not installed")
    def test_under_mpirun(self):
        said, _ = self.run_program(2, "ddp", "mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2")
        self.assertTrue(said.startswith("2 "), said)

    def test_options_that_do_not_go_together(self):
        with self.assertRaisesRegex(weft.Error, "int7"):
            weft.train.Fabric(precision="int7")
        with self.assertRaises(weft.Error):
            weft.train.Fabric(devices=2, strategy="nothing")


class Loop(unittest.TestCase):
    def setup_fabric(self, **options):
        fabric = weft.train.Fabric(**options)
        fabric.launch()
        fabric.seed_everything(1)
        model = nn.Linear(3, 2)
        optimizer = weft.optim.AdamW(model.named_parameters(), lr=0.1)
        return fabric, *fabric.setup(model, optimizer)

    def train(self, fabric, model, optimizer, rows):
        optimizer.zero_grad()
        fabric.backward((model(rows) ** 2).mean())
        optimizer.step()

    def test_rounds_add_up_to_a_step(self):
        rows = weft.tensor([[1.0, 2.0, 3.0], [-1.0, 0.5, 2.0], [0.0, 1.0, 1.0], [2.0, -1.0, 0.5]])
        fabric, model, optimizer = self.setup_fabric()
        self.train(fabric, model, optimizer, rows)
        whole = model.weight.tolist()

        fabric, model, optimizer = self.setup_fabric(gradient_accumulation_steps=2)
        before = model.weight.tolist()
        for part in (rows[:2], rows[2:]):
            self.assertEqual(model.weight.tolist(), before)
            with fabric.accumulate(model):
                self.train(fabric, model, optimizer, part)
        for ours, theirs in zip(sum(model.weight.tolist(), []), sum(whole, [])):
            self.assertAlmostEqual(ours, theirs, places=6)

        fabric, model, optimizer = self.setup_fabric()
        with fabric.no_backward_sync(model):
            fabric.backward((model(rows[:2]) ** 2).mean() / 2)
        fabric.backward((model(rows[2:]) ** 2).mean() / 2)
        optimizer.step()
        for ours, theirs in zip(sum(model.weight.tolist(), []), sum(whole, [])):
            self.assertAlmostEqual(ours, theirs, places=6)

    def test_rounds_of_several_models(self):
        rows = weft.tensor([[1.0, 2.0, 3.0], [-1.0, 0.5, 2.0]])

        def setup(**options):
            fabric, *others = self.setup_fabric(**options)  # with a model that is never in a round
            self.addCleanup(others.clear)  # which keeps it until then
            models = [fabric.setup_module(nn.Linear(3, 2)), fabric.setup_module(nn.Linear(2, 1))]
            optimizers = [weft.optim.SGD(m.named_parameters(), lr=0.1) for m in models]
            fabric.setup_optimizers(*optimizers)
            return fabric, models, optimizers

        def weights(models):
            return [m.weight.tolist() for m in models]

        # Two rounds on the same rows are a step on them.
        fabric, (first, second), optimizers = setup()
        fabric.backward((second(first(rows)) ** 2).mean())
        for optimizer in optimizers:
            optimizer.step()
        expected = weights((first, second))

        fabric, (first, second), optimizers = setup(gradient_accumulation_steps=2)
        before = weights((first, second))
        for _ in range(2):
            self.assertEqual(weights((first, second)), before)
            with fabric.accumulate(first, second):
                fabric.backward((second(first(rows)) ** 2).mean())
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
        self.assertEqual(weights((first, second)), expected)

        # Of one of them alone: the other's gradients are whole, and its optimizer steps.
        fabric, (first, second), optimizers = setup(gradient_accumulation_steps=2)
        with fabric.accumulate(first):
            fabric.backward((second(first(rows)) ** 2).mean())
            for optimizer in optimizers:
                optimizer.step()
        self.assertEqual(weights((first, second)), [before[0], expected[1]])

        with self.assertRaisesRegex(weft.Error, "has had 1 rounds and another 0"):
            with fabric.accumulate(first, second):
                pass
        with self.assertRaisesRegex(weft.Error, "of no model"):
            with fabric.accumulate():
                pass
        with self.assertRaisesRegex(TypeError, "accumulate: expected a model, got .*Optimizer"):
            fabric.accumulate(first, optimizers[0])

    def test_any_state_is_saved_and_taken_up(self):
        rows = weft.tensor([[1.0, 2.0, 3.0]])
        for kind in ("full", "sharded"):
            with self.subTest(kind), tempfile.TemporaryDirectory() as directory:
                path = os.path.join(directory, "state")
                fabric, model, optimizer = self.setup_fabric(state_dict_type=kind)
                self.train(fabric, model, optimizer, rows)
                mean = weft.tensor([1.5, 2.5])
                fabric.save(path, {"model": model, "optimizer": optimizer, "mean": mean, "epoch": 3, "note": {"a": [1]}})
                self.train(fabric, model, optimizer, rows)
                expected = model.weight.tolist()

                fabric, model, optimizer = self.setup_fabric()
                state = {"model": model, "optimizer": optimizer, "mean": weft.zeros(2), "epoch": 0}
                self.assertEqual(fabric.load(path, state), ["note"])
                self.assertEqual((state["epoch"], state["mean"].tolist()), (3, [1.5, 2.5]))
                self.assertIs(state["model"], model)
                self.train(fabric, model, optimizer, rows)
                self.assertEqual(model.weight.tolist(), expected)
                with self.assertRaisesRegex(weft.Error, 'holds no state "best"'):
                    fabric.load(path, {"best": 0.5})
                with self.assertRaises(TypeError):
                    fabric.save(path, {"loader": object()})

    def test_states_of_every_kind(self):
        class Best:
            def __init__(self, score, history):
                self.score, self.history = score, history

            def state_dict(self):
                return {"score": self.score, "history": self.history}

            def load_state_dict(self, state):
                self.score, self.history = state["score"], state["history"]

        class Average:
            def __init__(self, value):
                self.weights = {"fc.weight": weft.full((2,), value)}

            def state_dict(self):
                return self.weights

            def load_state_dict(self, state):
                self.weights = state

        inf, nan = float("inf"), float("nan")
        for kind in ("full", "sharded"):
            with self.subTest(kind), tempfile.TemporaryDirectory() as directory:
                path = os.path.join(directory, "state")
                fabric, _, _ = self.setup_fabric(state_dict_type=kind)
                fabric.save(path, {
                    "best": inf, "worst": -inf, "unknown": nan, "tenth": 0.1, "epoch": 2**53 + 1, "done": True,
                    "name": "a", "none": None, "nested": {"scores": [inf, {"low": -inf}], "mean": weft.ones(2), "n": 1},
                    "ema": {"a.b": weft.tensor([1.5]), "c": weft.tensor([[2.0]])}, "empty": {},
                    "object": Best(inf, [weft.tensor([3.0]), "text"]), "average": Average(4.0),
                    "ordered": {"b": (1, (2.5, "c")), "a": ()},
                })
                names = ("best", "worst", "unknown", "tenth", "epoch", "done", "name", "none", "nested", "ema", "empty")
                # What stood there says nothing of what the file holds.
                state = dict.fromkeys(names)
                best, average = Best(0, []), Average(0.0)
                state.update(object=best, average=average)
                self.assertEqual(fabric.load(path, state), ["ordered"])
                self.assertEqual((state["best"], state["worst"], state["tenth"]), (inf, -inf, 0.1))
                # Tuples are lists in a file, and dicts have the order of their keys.
                ordered = {"ordered": None}
                fabric.load(path, ordered)
                self.assertEqual(list(ordered["ordered"].items()), [("a", []), ("b", [1, [2.5, "c"]])])
                self.assertNotEqual(state["unknown"], state["unknown"])
                self.assertEqual((state["epoch"], state["name"], state["none"]), (2**53 + 1, "a", None))
                self.assertIs(state["done"], True)
                self.assertEqual(state["nested"]["scores"], [inf, {"low": -inf}])
                self.assertEqual((state["nested"]["mean"].tolist(), state["nested"]["n"]), ([1, 1], 1))
                self.assertEqual({name: x.tolist() for name, x in state["ema"].items()}, {"a.b": [1.5], "c": [[2.0]]})
                self.assertEqual(state["empty"], {})
                self.assertIs(state["object"], best)
                self.assertEqual((best.score, best.history[0].tolist(), best.history[1]), (inf, [3.0], "text"))
                self.assertEqual(average.weights["fc.weight"].tolist(), [4.0, 4.0])
                self.assertEqual(fabric.load(path, {"best": 0.0, "nested": None}).count("nested#tensors"), 0)

        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "state")
            fabric, model, optimizer = self.setup_fabric(precision="16-mixed")
            self.assertTrue(fabric.scaler.is_enabled())
            self.assertFalse(self.setup_fabric()[0].scaler.is_enabled())
            fabric.scaler.load_state_dict({**fabric.scaler.state_dict(), "scale": 32.0})
            fabric.save(path, {"scaler": fabric.scaler})
            other = self.setup_fabric(precision="16-mixed")[0]
            self.assertNotEqual(other.scaler.get_scale(), 32.0)
            other.load(path, {"scaler": other.scaler})
            self.assertEqual(other.scaler.get_scale(), 32.0)

            for value, name in ((object(), "object"), ({"a": {1, 2}}, "dict"), (2**70, "int"), ("\ud800", "str")):
                with self.assertRaisesRegex(TypeError, f'the state "odd", a {name}: expected a model'):
                    fabric.save(path, {"odd": value})
            for value, name in (({1: "a"}, "dict"), ([{"a": {True: 1}}], "list"), ({0: weft.ones(1)}, "dict"),
                                (Best(0, {None: 1}), ".*Best")):
                with self.assertRaisesRegex(TypeError, f'the state "odd", a {name}: .* texts as a dict\'s keys, got '):
                    fabric.save(path, {"odd": value})
            with self.assertRaisesRegex(TypeError, "expected texts as the state's keys, got 3, a int"):
                fabric.save(path, {3: 1})
            endless = []
            endless.append(endless)
            with self.assertRaises(RecursionError):
                fabric.save(path, {"odd": endless})

    @unittest.skipUnless(os.path.exists("/proc/self/io"), "the kernel does not count what a process reads")
    def test_a_full_state_is_read_once(self):
        def bytes_read():
            with open("/proc/self/io") as file:
                return int(file.readline().split()[1])  # by read() and pread(), which checksums are summed from

        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "state")
            fabric, model, _ = self.setup_fabric()
            state = {"model": model, "large": weft.ones(2**20), "epoch": 3}
            fabric.save(path, state)
            size, before = os.path.getsize(path), bytes_read()
            fabric.load(path, state)
            self.assertAlmostEqual((bytes_read() - before) / size, 1, delta=0.1)

    def test_figures_go_to_every_logger(self):
        class Remember(weft.train.Logger):
            def __init__(self):
                super().__init__()
                self.said = []

            def begin(self, step):
                self.said.append(step)

            def log_metrics(self, metrics, step):
                self.said.append((metrics, step))

            def finish(self):
                self.said.append("finished")

        with tempfile.TemporaryDirectory() as directory:
            remember = Remember()
            fabric, _, _ = self.setup_fabric(loggers=[remember, weft.train.MetricsLogger(directory)])
            fabric.log("loss", 0.5, step=1)
            fabric.log_dict({"loss": weft.tensor(0.25), "lr": 0.1}, step=2)
            with open(os.path.join(directory, "metrics.jsonl")) as file:
                lines = [json.loads(line) for line in file]
            self.assertEqual(lines, [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25, "lr": 0.1}])
            del fabric
            self.assertEqual(remember.said, [1, ({"loss": 0.5}, 1), ({"loss": 0.25, "lr": 0.1}, 2), "finished"])
            fabric, _, _ = self.setup_fabric(loggers=[weft.train.MetricsLogger(directory + "/metrics.csv/below")])
            with self.assertRaisesRegex(weft.Error, "metrics.csv"):
                fabric.log("loss", 0.5, step=1)
            with self.assertRaisesRegex(RuntimeError, "log_metrics"):
                self.setup_fabric(loggers=[weft.train.Logger()])[0].log("loss", 0.5, step=1)

    def test_hooks_are_called_where_they_are(self):
        class Epochs:
            def on_epoch_end(self, epoch, *, loss):
                self.last = (epoch, loss)

        epochs = Epochs()
        fabric, _, _ = self.setup_fabric(callbacks=[object(), epochs])
        fabric.call("on_epoch_end", 3, loss=0.5)
        fabric.call("on_nothing")
        self.assertEqual(epochs.last, (3, 0.5))
        with self.assertRaises(TypeError):
            fabric.call("on_epoch_end")

    def test_strategies_have_their_options(self):
        options = weft.train.StrategyOptions("fsdp", shard_grad_op=True, wrap="Linear")
        self.assertEqual((options.name, options.shard_grad_op, options.wrap), ("fsdp", True, "Linear"))
        self.assertEqual(repr(options), "StrategyOptions('fsdp', wrap='Linear', shard_grad_op=True)")
        self.assertEqual(options.bucket_mb, 0)
        weft.train.Fabric(devices=2, strategy=options)
        with self.assertRaisesRegex(weft.Error, "bucket"):
            weft.train.Fabric(devices=2, strategy=weft.train.StrategyOptions("fsdp", bucket_mb=4))
        with self.assertRaisesRegex(TypeError, 'unknown setting "shard_gradop"; did you mean "shard_grad_op"'):
            weft.train.StrategyOptions("fsdp", shard_gradop=True)

    def test_a_pipelines_schedule(self):
        self.assertEqual(weft.train.StrategyOptions("pipeline").schedule, "1f1b")
        for name in ("schedule", "pipeline_schedule"):
            options = weft.train.StrategyOptions("pipeline", micro_batches=2, **{name: "gpipe"})
            self.assertEqual((options.schedule, options.pipeline_schedule), ("gpipe", "gpipe"))
            self.assertEqual(repr(options), "StrategyOptions('pipeline', micro_batches=2, schedule='gpipe')")
            setattr(options, name, "1f1b")
            self.assertEqual(options.schedule, "1f1b")
            with self.assertRaisesRegex(weft.Error, '"zb-h1" is not one of gpipe, 1f1b'):
                weft.train.StrategyOptions("pipeline", **{name: "zb-h1"})
            with self.assertRaisesRegex(weft.Error, '"zb-h1" is not one of gpipe, 1f1b'):
                setattr(options, name, "zb-h1")
        with self.assertRaisesRegex(TypeError, "StrategyOptions: schedule: expected str, got 1"):
            weft.train.StrategyOptions("pipeline", schedule=1)
        with self.assertRaisesRegex(TypeError, "StrategyOptions: bucket_mb: expected int, got 'many'"):
            weft.train.StrategyOptions("ddp", bucket_mb="many")

    def test_any_iterable_is_shared_out(self):
        fabric, _, _ = self.setup_fabric()
        batches = [(weft.arange(2 * i, 2 * i + 2), weft.ones(2, 3)) for i in range(3)]
        loader = fabric.setup_dataloader(batches)
        self.assertEqual(len(loader), 3)
        for _ in range(2):
            self.assertEqual([x.tolist() for x, _ in loader], [[0, 1], [2, 3], [4, 5]])
        for x, y in loader:  # left early, it begins anew
            break
        self.assertEqual(next(iter(loader))[0].tolist(), [0, 1])

        once = fabric.setup_dataloader(weft.arange(i, i + 1) for i in range(3))
        with self.assertRaises(TypeError):
            len(once)
        self.assertTrue(once)
        self.assertEqual([x.item() for x in once], [0, 1, 2])
        self.assertEqual(list(once), [])

        class Pair(NamedTuple):
            left: weft.Tensor
            right: list

        class Nested:
            def __iter__(self):
                x = weft.arange(4)
                yield {"x": x, "pair": Pair(x + 1, [x + 2, "text"]), "other": (None, 3)}

        (batch,) = fabric.setup_dataloader(Nested())
        self.assertEqual(batch["x"].tolist(), [0, 1, 2, 3])
        self.assertIsInstance(batch["pair"], Pair)
        self.assertEqual((batch["pair"].left.tolist(), batch["pair"].right[1]), ([1, 2, 3, 4], "text"))
        self.assertEqual((batch["pair"].right[0].tolist(), batch["other"]), ([2, 3, 4, 5], (None, 3)))

        def fails():
            yield weft.ones(1)
            yield weft.ones(1)
            raise KeyError("third")

        passed = iter(fabric.setup_dataloader(fails()))
        next(passed)
        with self.assertRaisesRegex(KeyError, "third"):
            next(passed)
        with self.assertRaisesRegex(TypeError, "expected an iterable of batches, got a int"):
            fabric.setup_dataloader(3)
        with self.assertRaisesRegex(TypeError, "was not set up yet, got a .*SharedBatches"):
            fabric.setup_dataloader(loader)
        with self.assertRaisesRegex(weft.Error, "launch"):
            weft.train.Fabric().setup_dataloader(batches)

    @needs_numpy
    def test_numpys_batches_become_tensors(self):
        fabric, _, _ = self.setup_fabric()
        loader = fabric.setup_dataloader([{"x": numpy.ones((2, 3), "float32"), "n": numpy.int64(4)}])
        (batch,) = loader
        self.assertEqual((batch["x"].shape, batch["x"].dtype), ((2, 3), weft.float32))
        self.assertEqual(batch["n"], 4)

    def test_the_last_batch_of_an_iterable_ends_a_round(self):
        fabric, model, optimizer = self.setup_fabric(gradient_accumulation_steps=2)
        steps, before = [], model.weight.tolist()
        for rows in fabric.setup_dataloader([weft.ones(2, 3)] * 3):
            with fabric.accumulate(model):
                self.train(fabric, model, optimizer, rows)
            steps.append(model.weight.tolist() != before)
            before = model.weight.tolist()
        self.assertEqual(steps, [False, True, True])

    def test_what_ranks_gather(self):
        fabric, _, _ = self.setup_fabric()
        rows = [weft.arange(3), weft.arange(3, 5)]
        gathered = [fabric.gather_for_metrics(x) for x in fabric.setup_dataloader(rows)]
        self.assertEqual([x.tolist() for x in gathered], [[0, 1, 2], [3, 4]])
        x = weft.tensor([1.0, 2.0], requires_grad=True)
        self.assertFalse(fabric.gather_for_metrics(x).requires_grad)
        with self.assertRaisesRegex(weft.Error, "a row for each sample"):
            fabric.gather_for_metrics(weft.tensor(1.0))
        everybody = fabric.all_gather(x)
        self.assertEqual(everybody.shape, (1, 2))
        (everybody * everybody).sum().backward()
        self.assertEqual(x.grad.tolist(), [2.0, 4.0])

    def test_mixed_precision(self):
        rows = weft.tensor([[1.0, 2.0, 3.0], [-1.0, 0.5, 2.0]])
        fabric, model, optimizer = self.setup_fabric()
        exact = model(rows)
        self.train(fabric, model, optimizer, rows)
        for precision, bound in (("16-mixed", 2e-2), ("bf16-mixed", 1e-1)):
            with self.subTest(precision):
                fabric, mixed, optimizer = self.setup_fabric(precision=precision)
                output = mixed(rows)
                self.assertEqual((output.dtype, mixed.weight.dtype), (weft.float32, weft.float32))
                self.assertLess((output - exact).abs().max().item(), bound)
                self.assertEqual(fabric.scaler.is_enabled(), precision == "16-mixed")
                if fabric.scaler.is_enabled():  # the first scale would leave steps out
                    fabric.scaler.load_state_dict({**fabric.scaler.state_dict(), "scale": 128.0})
                self.train(fabric, mixed, optimizer, rows)
                self.assertLess((mixed.weight - model.weight).abs().max().item(), bound)
        # What overflows leaves the step out, and halves the scale.
        fabric, mixed, optimizer = self.setup_fabric(precision="16-mixed")
        before, scale = mixed.weight.tolist(), fabric.scaler.get_scale()
        optimizer.zero_grad()
        fabric.backward((mixed(rows) * float("inf")).sum())
        self.assertFalse(fabric.step(optimizer))
        self.assertEqual((mixed.weight.tolist(), fabric.scaler.get_scale()), (before, scale / 2))

    def test_methods_of_a_model(self):
        class Encoder(nn.Module):
            def __init__(self):
                super().__init__()
                self.line = nn.Linear(3, 2)

            def forward(self, x):
                return self.line(x)

            def encode(self, x, factor):
                return self.line(x) * factor

        weft.manual_seed(2)
        model, x = Encoder(), weft.ones(2, 3)
        expected = (model(x) * 2.0).tolist()
        fabric = weft.train.Fabric(precision="bf16-mixed")
        fabric.launch()
        fabric.setup_module(model)
        encoded = fabric.forward(model, lambda: model.encode(x, 2.0))
        self.assertEqual(encoded.dtype, weft.float32)
        for ours, theirs in zip(sum(encoded.tolist(), []), sum(expected, [])):
            self.assertAlmostEqual(ours, theirs, delta=0.1)
        self.assertEqual(fabric.forward(model, x).tolist(), model(x).tolist())
        self.assertEqual(fabric.forward(x).tolist(), model(x).tolist())
        with self.assertRaisesRegex(TypeError, "forward: expected a tensor from the function, got a list"):
            fabric.forward(model, list)
        with self.assertRaisesRegex(KeyError, "inside"):
            fabric.forward(model, lambda: {}["inside"])
        with self.assertRaises(weft.Error):
            fabric.forward(Encoder(), lambda: x)

    def test_any_loader_is_shared_out(self):
        fabric, _, _ = self.setup_fabric()
        dataset = weft.data.TensorDataset(weft.arange(5), weft.ones(5, 2))
        loader, other = (weft.data.TensorLoader(dataset, batch_size=size) for size in (2, 3))
        batches = [(x.tolist(), y.shape) for x, y in fabric.setup_dataloader(loader)]
        self.assertEqual(batches, [([0, 1], (2, 2)), ([2, 3], (2, 2)), ([4], (1, 2))])
        first, second = fabric.setup_dataloaders(loader, other)
        self.assertEqual((next(first)[0].tolist(), next(second)[0].tolist()), ([0, 1], [0, 1, 2]))

    def test_none_is_an_options_default(self):
        fabric = weft.train.Fabric(
            accelerator=None, devices=None, num_nodes=None, precision=None, strategy=None, loggers=None,
            callbacks=None, collectives=None, split_batches=None, state_dict_type=None, tf32_rounding=None,
        )
        self.assertEqual((fabric.world_size, fabric.device, fabric.loggers), (1, weft.device("cpu"), []))
        self.assertEqual(weft.train.from_environment(strategy=None)["strategy"], None)
        with self.assertRaisesRegex(weft.Error, 'loss_scale: expected "dynamic", "none" or a number, got None'):
            weft.train.Fabric(loss_scale=None)
        options = weft.train.StrategyOptions("fsdp", cpu_offload=None, wrap=None, schedule=None)
        self.assertEqual(repr(options), "StrategyOptions('fsdp')")
        with self.assertRaisesRegex(TypeError, 'unknown setting "wrapp"; did you mean "wrap"'):
            weft.train.StrategyOptions("fsdp", wrapp=None)
        # What follows from other options is no default.
        with self.assertRaisesRegex(TypeError, "Gpt: kv_heads: unexpected None"):
            weft.models.Gpt(heads=8, kv_heads=None)

    def test_setup_returns_what_it_was_given(self):
        fabric, model, optimizer = self.setup_fabric()
        other = nn.Linear(3, 2)
        self.assertIs(fabric.setup_module(other), other)
        two = [weft.optim.SGD([p], lr=0.1) for p in other.named_parameters()]
        self.assertIs(fabric.setup_optimizers(two[0]), two[0])
        self.assertIs(fabric.setup(nn.Linear(1, 1)).__class__, nn.Linear)
        with self.assertRaisesRegex(TypeError, "setup: expected an optimizer, got .*Linear"):
            fabric.setup(nn.Linear(1, 1), other)


class Engine(unittest.TestCase):
    def config(self, **more):
        return {
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": 2,
            "optimizer": {"type": "Adam", "params": {"lr": 0.01}},
            **more,
        }

    def run_steps(self, engine, steps):
        for step in range(steps):
            x, y = weft.ones(4, 3) * (step + 1), weft.tensor([0, 1, 0, 1])
            for _ in range(engine.gradient_accumulation_steps()):
                engine.backward(F.cross_entropy(engine(x), y))
                engine.step()
        return engine.module.state_dict()["weight"].tolist()

    def test_the_loop_of_deepspeed(self):
        engine, optimizer, loader, scheduler = weft.train.initialize(model=nn.Linear(3, 2), config=self.config())
        self.assertIsNone(loader)
        self.assertIsNone(scheduler)
        self.assertEqual(engine.train_batch_size(), 8)
        self.run_steps(engine, 3)
        self.assertEqual((engine.global_steps, engine.micro_steps, engine.skipped_steps), (3, 6, 0))
        self.assertTrue(engine.was_step_applied())
        self.assertEqual(engine.get_lr(), [0.01])
        self.assertGreater(engine.get_global_grad_norm(), 0)
        self.assertEqual(len(optimizer.param_groups), 1)

    def test_a_model_of_several_inputs(self):
        class Scaled(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(3, 2)

            def forward(self, x, scale, *, shift):
                return self.inner(x) * scale + shift

        model, x = Scaled(), weft.ones(4, 3)
        expected = model(x, 2.0, shift=1.0).tolist()
        engine = weft.train.initialize(model=model, config=self.config())[0]
        for step in range(2):
            y = engine(x, 2.0, shift=1.0)
            if step == 0:
                self.assertEqual(y.tolist(), expected)
            engine.backward(y.sum(), retain_graph=False)
            engine.step()
        self.assertEqual(engine.global_steps, 1)
        with self.assertRaisesRegex(weft.Error, "retain_graph: expected False"):
            engine.backward(engine(x, 2.0, shift=1.0).sum(), retain_graph=True)

    def test_a_checkpoint_goes_on(self):
        with tempfile.TemporaryDirectory() as directory:
            engine = weft.train.initialize(model=nn.Linear(3, 2), config=self.config())[0]
            self.assertEqual(engine.load_checkpoint(directory), (None, {}))
            self.run_steps(engine, 2)
            engine.save_checkpoint(directory, client_state={"epoch": 7})
            other = weft.train.initialize(
                model=nn.Linear(3, 2), config=self.config(), lr_scheduler=lambda step: 1.0 / (step + 1)
            )[0]
            with self.assertRaisesRegex(weft.Error, "schedule"):
                other.load_checkpoint(directory)
            third = weft.train.initialize(model=nn.Linear(3, 2), config=self.config())[0]
            path, client_state = third.load_checkpoint(directory)
            self.assertIn("global_step2", path)
            self.assertEqual(client_state, {"epoch": 7})
            self.assertEqual(self.run_steps(third, 1), self.run_steps(engine, 1))

    def test_arguments_in_deepspeeds_order(self):
        model, config = nn.Linear(3, 2), self.config()
        engine, optimizer, loader, scheduler = weft.train.initialize(None, model, None, None, None, None, config)
        self.assertIs(engine.module, model)
        self.assertIs(optimizer, engine.optimizer)
        self.assertEqual((loader, scheduler, engine.lr_scheduler), (None, None, None))
        other = weft.train.initialize(model=nn.Linear(3, 2), config_params=config)[0]
        self.assertEqual(other.train_batch_size(), 8)
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "config.json")
            with open(path, "w") as file:
                json.dump(config, file)
            args = types.SimpleNamespace(deepspeed_config=path)
            self.assertEqual(weft.train.initialize(args, nn.Linear(3, 2))[0].train_batch_size(), 8)
        with self.assertRaisesRegex(TypeError, "config_params is config by another name"):
            weft.train.initialize(model=model, config=config, config_params=config)
        with self.assertRaisesRegex(TypeError, "expected config, .* got None"):
            weft.train.initialize(model=model)
        with self.assertRaisesRegex(TypeError, "expected a model, got a NoneType"):
            weft.train.initialize(config=config)

    def test_the_configs_optimizer_of_some_parameters(self):
        for parameters in (lambda m: [m.weight], lambda m: iter([("weight", m.weight)]),
                           lambda m: [{"params": [m.weight], "lr": 0.01}]):
            model = nn.Linear(3, 2)
            bias, weight = model.bias.tolist(), model.weight.tolist()
            engine, optimizer, _, _ = weft.train.initialize(
                model=model, model_parameters=parameters(model), config=self.config()
            )
            self.assertEqual(len(optimizer.param_groups[0]["params"]), 1)
            self.assertEqual(engine.get_lr(), [0.01])
            self.run_steps(engine, 1)
            self.assertEqual(model.bias.tolist(), bias)
            self.assertNotEqual(model.weight.tolist(), weight)
        everything, plain = nn.Linear(3, 2), nn.Linear(3, 2)
        plain.load_state_dict(everything.state_dict())
        engine = weft.train.initialize(
            model=everything, model_parameters=everything.parameters(), config=self.config()
        )[0]
        expected = weft.train.initialize(model=plain, config=self.config())[0]
        self.assertEqual(self.run_steps(engine, 2), self.run_steps(expected, 2))
        with self.assertRaisesRegex(ValueError, "expected parameters of the model"):
            weft.train.initialize(
                model=nn.Linear(3, 2), model_parameters=nn.Linear(3, 2).parameters(), config=self.config()
            )

    def test_what_the_config_leaves_out_has_deepspeeds_value(self):
        config = self.config(optimizer={"type": "SGD", "params": {"lr": 0.1}})
        for own in (False, True):
            model = nn.Linear(3, 2)
            parameters = model.parameters() if own else None
            optimizer = weft.train.initialize(model=model, model_parameters=parameters, config=config)[1]
            group = optimizer.param_groups[0]
            self.assertEqual((group["momentum"], group["weight_decay"]), (0, 0))

    def test_data_of_ones_own(self):
        samples = weft.data.TensorDataset(weft.arange(10), weft.ones(10, 3))
        for data in (samples, [samples[i] for i in range(10)]):
            loader = weft.train.initialize(model=nn.Linear(3, 2), training_data=data, config=self.config())[2]
            batches = [(x.tolist(), y.shape) for x, y in loader]
            self.assertEqual([shape for _, shape in batches], [(4, 3), (4, 3), (2, 3)])
            self.assertEqual(sorted(sum((x for x, _ in batches), [])), list(range(10)))
        loader = weft.train.initialize(
            model=nn.Linear(3, 2), training_data=iter([weft.ones(4, 3)]), config=self.config()
        )[2]
        self.assertEqual([x.shape for x in loader], [(4, 3)])
        with self.assertRaisesRegex(TypeError, "training_data: expected a data set, .*got a int"):
            weft.train.initialize(model=nn.Linear(3, 2), training_data=3, config=self.config())

    def test_a_scheduler_of_the_callers(self):
        def start():
            weft.manual_seed(3)
            model = nn.Linear(3, 2)
            optimizer = weft.optim.SGD(model.named_parameters(), lr=0.8)
            scheduler = weft.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
            config = self.config(scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 10}})
            return weft.train.initialize(model=model, optimizer=optimizer, lr_scheduler=scheduler, config=config)

        engine, optimizer, _, scheduler = start()
        self.assertIs(engine.lr_scheduler, scheduler)
        self.run_steps(engine, 2)
        self.assertEqual((scheduler.step_count, optimizer.lr), (2, 0.2))
        with tempfile.TemporaryDirectory() as directory:
            engine.save_checkpoint(directory, client_state={"best": float("inf")})
            other, optimizer, _, scheduler = start()
            self.assertEqual(other.load_checkpoint(directory)[1], {"best": float("inf")})
            self.assertEqual((scheduler.step_count, optimizer.lr), (2, 0.2))
            self.assertEqual(self.run_steps(other, 1), self.run_steps(engine, 1))
        with self.assertRaisesRegex(TypeError, "has an optimizer of its own"):
            weft.train.initialize(model=nn.Linear(3, 2), lr_scheduler=scheduler, config=self.config())
        with self.assertRaisesRegex(TypeError, "expected a Scheduler or a function of the step, got a str"):
            weft.train.initialize(model=nn.Linear(3, 2), lr_scheduler="cosine", config=self.config())
        with self.assertRaisesRegex(TypeError, "lr_scheduler: expected a number from the schedule .* got None"):
            weft.train.initialize(model=nn.Linear(3, 2), lr_scheduler=lambda step: None, config=self.config())

    def test_the_scheduler_of_the_config(self):
        warmup = {"warmup_min_lr": 0.001, "warmup_max_lr": 0.01, "warmup_num_steps": 3, "warmup_type": "linear"}
        config = self.config(scheduler={"type": "WarmupLR", "params": warmup})
        engine, optimizer, _, scheduler = weft.train.initialize(model=nn.Linear(3, 2), config=config)
        self.assertIsInstance(scheduler, weft.optim.lr_scheduler.Scheduler)
        self.assertIs(engine.lr_scheduler, scheduler)
        rates = []
        for _ in range(4):
            rates += scheduler.get_last_lr()
            self.assertEqual(scheduler.get_last_lr(), engine.get_lr())
            self.assertEqual(scheduler.get_lr(), engine.get_lr())
            self.run_steps(engine, 1)
        for rate, expected in zip(rates, [0.001, 0.001, 0.004, 0.007]):
            self.assertAlmostEqual(rate, expected)
        self.assertEqual(scheduler.state_dict()["step"], 4)
        del engine, optimizer  # which the scheduler keeps alive
        gc.collect()
        self.assertAlmostEqual(scheduler.get_last_lr()[0], 0.01)

    def test_the_scheduler_of_a_function(self):
        engine, _, _, scheduler = weft.train.initialize(
            model=nn.Linear(3, 2), config=self.config(), lr_scheduler=lambda step: 1.0 / (step + 1)
        )
        self.run_steps(engine, 1)
        self.assertEqual((scheduler.step_count, scheduler.get_last_lr()), (1, [0.005]))

    def test_rates_of_groups(self):
        model = nn.Linear(3, 2)
        groups = [{"params": [model.weight], "lr": 0.5}, {"params": [model.bias]}]
        engine = weft.train.initialize(model=model, model_parameters=groups, config=self.config())[0]
        self.assertEqual(engine.get_lr(), [0.5, 0.01])

    def test_where_it_computes(self):
        engine = weft.train.initialize(model=nn.Linear(3, 2), config=self.config())[0]
        self.assertEqual((engine.device, engine.local_rank), (engine.fabric.device, engine.fabric.local_rank))
        self.assertEqual((engine.device, engine.local_rank), (weft.device("cpu"), 0))

    def test_parts_of_a_checkpoint(self):
        def start(own):
            model = nn.Linear(3, 2)
            if not own:
                config = self.config(scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 10}})
                return weft.train.initialize(model=model, config=config)[0]
            optimizer = weft.optim.Adam(model.named_parameters(), lr=0.8)
            scheduler = weft.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
            return weft.train.initialize(
                model=model, optimizer=optimizer, lr_scheduler=scheduler, config=self.config()
            )[0]

        for own in (False, True):
            with tempfile.TemporaryDirectory() as directory:
                engine = start(own)
                weight = self.run_steps(engine, 3)
                engine.save_checkpoint(directory, client_state={"epoch": 7})
                for options, optimizer_steps, schedule_steps, steps in (
                    ({}, 3, 3, 3),
                    ({"load_optimizer_states": False}, 0, 3, 3),
                    ({"load_lr_scheduler_states": False}, 3, 0, 3),
                    ({"load_module_only": True}, 0, 0, 0),
                ):
                    with self.subTest(own=own, **options):
                        other = start(own)
                        before = other.get_lr()
                        self.assertEqual(other.load_checkpoint(directory, **options)[1], {"epoch": 7})
                        self.assertEqual(other.module.state_dict()["weight"].tolist(), weight)
                        loaded = bool(other.optimizer.state_dict()["state"])
                        self.assertEqual(loaded, optimizer_steps > 0)
                        self.assertEqual(other.lr_scheduler.step_count, schedule_steps)
                        self.assertEqual((other.global_steps, other.micro_steps), (steps, 2 * steps))
                        expected = before if "load_module_only" in options else engine.get_lr()
                        self.assertEqual(other.get_lr(), expected)
                        self.run_steps(other, 1)
                        self.assertEqual(other.lr_scheduler.step_count, schedule_steps + 1)
                with self.assertRaisesRegex(weft.Error, "load_module_strict: expected True, got False"):
                    engine.load_checkpoint(directory, load_module_strict=False)

    def test_what_it_cannot_take(self):
        with self.assertRaisesRegex(weft.Error, "optimizer"):
            weft.train.initialize(model=nn.Linear(3, 2), config={"train_batch_size": 4})
        with self.assertRaisesRegex(weft.Error, "fp61"):
            weft.train.initialize(model=nn.Linear(3, 2), config=self.config(fp61={}))
        with self.assertRaisesRegex(TypeError, "initialize: config: expected what JSON holds: .* type object"):
            weft.train.initialize(model=nn.Linear(3, 2), config=self.config(fp16=object()))
        engine = weft.train.initialize(model=nn.Linear(3, 2), config=self.config())[0]
        with tempfile.TemporaryDirectory() as directory:
            for state, reason in (({"a": object()}, "type object is not"), ({"a": 1 << 70}, "64 bits"),
                                  ({1: "a"}, "texts as a dict's keys, got 1, a int")):
                with self.assertRaisesRegex(TypeError, "save_checkpoint: client_state: expected .*" + reason):
                    engine.save_checkpoint(directory, client_state=state)
            self.assertEqual(os.listdir(directory), [])


class Kernels(unittest.TestCase):
    def test_variants_are_listed_and_forced(self):
        rows = weft.kernels.variants("gemm")
        names = [row["name"] for row in rows]
        self.assertIn("gemm_cpu_eigen", names)
        self.assertTrue(all(row["op"] == "gemm" and row["device"] in ("cpu", "cuda") for row in rows))
        self.assertIn(weft.float64, rows[names.index("gemm_cpu_eigen")]["dtypes"])
        self.assertGreaterEqual(len({row["op"] for row in weft.kernels.variants()}), 20)
        a = weft.randn(3, 4)
        with weft.kernels.use("gemm", "gemm_cpu_eigen"):
            self.assertLess((a @ a.T - (a.unsqueeze(1) * a).sum(-1)).abs().max().item(), 1e-5)
        with weft.kernels.use("gemm", "gemm_cpu_exact"), self.assertRaisesRegex(weft.Error, "does not fit"):
            a @ a.T
        a @ a.T
        with self.assertRaisesRegex(weft.Error, "no variant 'fast'"):
            weft.kernels.use("gemm", "fast")
        with self.assertRaisesRegex(weft.Error, "no op 'conv9d'"):
            weft.kernels.variants("conv9d")


if __name__ == "__main__":
    unittest.main()
