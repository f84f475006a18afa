"""Fabric on one rank and on several; DeepSpeed's loop; the kernels' variants."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import unittest

import weft
from weft import nn
from weft.nn import functional as F

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

    def test_any_loader_is_shared_out(self):
        fabric, _, _ = self.setup_fabric()
        dataset = weft.data.TensorDataset(weft.arange(5), weft.ones(5, 2))
        loader, other = (weft.data.TensorLoader(dataset, batch_size=size) for size in (2, 3))
        batches = [(x.tolist(), y.shape) for x, y in fabric.setup_dataloader(loader)]
        self.assertEqual(batches, [([0, 1], (2, 2)), ([2, 3], (2, 2)), ([4], (1, 2))])
        first, second = fabric.setup_dataloaders(loader, other)
        self.assertEqual((next(first)[0].tolist(), next(second)[0].tolist()), ([0, 1], [0, 1, 2]))

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

    def test_what_it_cannot_take(self):
        with self.assertRaisesRegex(weft.Error, "optimizer"):
            weft.train.initialize(model=nn.Linear(3, 2), config={"train_batch_size": 4})
        with self.assertRaisesRegex(weft.Error, "fp61"):
            weft.train.initialize(model=nn.Linear(3, 2), config=self.config(fp61={}))


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
