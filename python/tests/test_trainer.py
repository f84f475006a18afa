"""The Trainer: a module, data and callbacks written in Python."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from datetime import timedelta

import weft
from weft import nn, optim
from weft.nn import functional as F
from weft.optim import lr_scheduler
from weft.train import Callback, EarlyStopping, ModelCheckpoint, Trainer, TrainingModule

RANKS = """
import sys
sys.path.insert(0, sys.argv[1])
from test_trainer import Regression, line
import weft

devices = int(sys.argv[2])
trainer = weft.train.Trainer(max_epochs=2, devices=devices, strategy="fsdp" if devices > 1 else "auto",
                             enable_progress_bar=False, enable_table=False)
trainer.launch()
trainer.seed_everything(1)
model = Regression()
loader, validation = line(32, 8 // devices), line(8, 4)
trainer.fit(model, loader, validation)
trainer.fabric.print(trainer.fabric.world_size, f"{trainer.metrics['val_loss']:.6f}")
trainer.fabric.save(sys.argv[3])
"""


class Regression(TrainingModule):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(3, 1)

    def forward(self, x):
        return self.line(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.mse_loss(self(x), y)
        self.log("train_loss", loss, on_step=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log_dict({"val_loss": F.mse_loss(self(batch[0]), batch[1]), "one": 1})

    def configure_optimizers(self):
        return optim.SGD(self.named_parameters(), lr=0.1)


def line(rows, batch_size, **options):
    weft.manual_seed(3)
    x = weft.randn(rows, 3)
    y = x @ weft.tensor([[1.0], [-2.0], [0.5]]) + 0.25
    return weft.data.TensorLoader(weft.data.TensorDataset(x, y), batch_size=batch_size, **options)


def quiet(**options):
    return Trainer(enable_progress_bar=False, enable_table=False, handle_signals=False, **options)


def made(module):
    weft.manual_seed(7)
    return module()


def fit(trainer, module=None, batch_size=4, **options):
    trainer.seed_everything(1)
    module = module or Regression()
    trainer.fit(module, line(16, batch_size, shuffle=True), line(8, 4), **options)
    return module


class Fit(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, *names):
        return os.path.join(self.folder.name, *names)

    def test_a_line_is_learned(self):
        trainer = quiet(max_epochs=60)
        module = fit(trainer)
        self.assertEqual((trainer.epoch, trainer.global_step), (60, 240))
        self.assertLess(trainer.metrics["val_loss"], 1e-6)
        self.assertEqual(trainer.metrics["one"], 1)
        for ours, truth in zip(module.line.weight[0].tolist(), [1, -2, 0.5]):
            self.assertAlmostEqual(ours, truth, places=3)
        again = trainer.validate(module, line(8, 4))
        self.assertEqual(again["val_loss"], trainer.metrics["val_loss"])

    def test_the_same_as_a_loop_by_hand(self):
        module = fit(quiet(max_epochs=2))
        fabric = weft.train.Fabric()
        fabric.launch()
        fabric.seed_everything(1)
        by_hand = Regression().line
        optimizer = optim.SGD(by_hand.named_parameters(), lr=0.1)
        loader = line(16, 4, shuffle=True)
        for _ in range(2):
            for x, y in loader:
                optimizer.zero_grad()
                F.mse_loss(by_hand(x), y).backward()
                optimizer.step()
        self.assertEqual(module.line.weight.tolist(), by_hand.weight.tolist())

    def test_a_schedule_and_two_parts_of_a_step(self):
        class Parts(TrainingModule):
            def __init__(self):
                super().__init__()
                self.line = nn.Linear(3, 1)

            def forward(self, x):
                return self.line(x)

            def loss(self, output, batch):
                return F.mse_loss(output, batch[1])

            def configure_optimizers(self):
                optimizer = optim.SGD(self.named_parameters(), lr=0.1)
                return optimizer, lr_scheduler.linear(self.trainer.estimated_steps, 1, 0)

        trainer = quiet(max_epochs=2)
        trainer.seed_everything(1)
        trainer.fit(Parts(), line(16, 4))
        self.assertEqual(trainer.estimated_steps, 8)
        self.assertEqual(trainer.optimizer.lr, 0)

    def test_data_of_ones_own(self):
        class Squares:
            def __len__(self):
                return 6

            def __getitem__(self, i):
                return weft.tensor([float(i)]), weft.tensor([float(i * i)])

        loader = weft.data.TensorLoader(Squares(), batch_size=4)
        self.assertEqual(len(loader), 2)
        (x, y), (u, v) = loader
        self.assertEqual((x.tolist(), y.tolist()), ([[0], [1], [2], [3]], [[0], [1], [4], [9]]))
        self.assertEqual((u.tolist(), loader.position), ([[4], [5]], (1, 0)))
        dataset = weft.data.TensorDataset(weft.arange(3))
        self.assertEqual((len(dataset), dataset[-1][0].item()), (3, 2))
        with self.assertRaises(IndexError):
            dataset[3]
        with self.assertRaisesRegex(TypeError, "sample 0: expected a tensor or a tuple of tensors, got str"):
            next(weft.data.TensorLoader(["a"]))

    def test_any_object_of_batches(self):
        class Own:
            """The batches of a TensorLoader, in the order of the epoch that it was told."""

            def __init__(self, loader):
                self.loader, self.epochs, self.begun = loader, [], 0

            def set_epoch(self, epoch):
                self.epochs.append(epoch)

            def __len__(self):
                return len(self.loader)

            def __iter__(self):
                self.begun += 1
                self.loader.position = (self.epochs[-1], 0)
                return iter([tuple(batch) for batch in self.loader])

        def fit_own(trainer, module=None, **options):
            trainer.seed_everything(1)
            module, own = module or Regression(), Own(line(16, 4, shuffle=True))
            trainer.fit(module, own, list(line(8, 4)), **options)
            return module, own

        whole = fit(quiet(max_epochs=3))
        trainer = quiet(max_epochs=3)
        module, own = fit_own(trainer)
        self.assertEqual(own.epochs, [0, 1, 2])
        self.assertEqual(module.line.weight.tolist(), whole.line.weight.tolist())
        measured = trainer.validate(module, list(line(8, 4)))
        self.assertEqual(measured["val_loss"], trainer.metrics["val_loss"])
        self.assertEqual(len(trainer.predict(module, [x for x, _ in line(8, 4)])), 2)

        # Inside of the second epoch: its first two batches are skipped.
        first = quiet(max_epochs=-1, max_steps=6, directory=self.path("own"))
        fit_own(first)
        del first
        seen = []

        class Sees(Callback):
            def on_train_batch_start(self, trainer, module, batch, batch_idx):
                seen.append(batch_idx)

        rest = quiet(max_epochs=3, callbacks=[Sees()])
        module, own = fit_own(rest, ckpt_path=self.path("own", "checkpoints", "last.safetensors"))
        self.assertEqual((own.epochs, own.begun, seen), ([1, 2], 2, [2, 3, 0, 1, 2, 3]))
        self.assertEqual(module.line.weight.tolist(), whole.line.weight.tolist())

    def test_hooks(self):
        class Hooks(Callback):
            def __init__(self):
                super().__init__()
                self.called = []

            def on_fit_start(self, trainer, module):
                self.called.append("fit_start")
                assert module.trainer is trainer

            def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
                self.called.append((batch_idx, outputs["loss"].shape, [x.shape for x in batch]))

            def on_before_optimizer_step(self, trainer, module, optimizer):
                assert optimizer.param_groups[0]["lr"] == 0.1 and module.line.weight.grad is not None

            def on_validation_end(self, trainer, module):
                self.called.append(sorted(trainer.metrics))

            def on_fit_end(self, trainer, module):
                self.called.append("fit_end")

        hooks = Hooks()
        fit(quiet(max_epochs=1, callbacks=[hooks], num_sanity_val_steps=0), batch_size=8)
        batch = ((), [(8, 3), (8, 1)])
        names = ["one", "train_loss", "val_loss"]
        self.assertEqual(hooks.called, ["fit_start", (0, *batch), (1, *batch), names, "fit_end"])

    def test_callbacks_see_what_steps_return(self):
        class Predicts(Regression):
            def training_step(self, batch, batch_idx):
                x, y = batch
                prediction = self(x)
                return {"loss": F.mse_loss(prediction, y), "prediction": prediction, "step": batch_idx}

            def validation_step(self, batch, batch_idx):
                super().validation_step(batch, batch_idx)
                return self(batch[0])

        class Sees(Callback):
            batches, rows = 0, 0

            def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
                loss, prediction = outputs["loss"], outputs["prediction"]
                assert outputs["step"] == batch_idx and not prediction.requires_grad and not loss.requires_grad
                assert loss.item() == F.mse_loss(prediction, batch[1]).item()
                self.batches += 1

            def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx):
                assert outputs.shape == batch[1].shape
                self.rows += len(outputs)

        sees = Sees()
        module = fit(quiet(max_epochs=1, callbacks=[sees], num_sanity_val_steps=0), made(Predicts))
        self.assertEqual((sees.batches, sees.rows), (4, 8))
        plain = fit(quiet(max_epochs=1), made(Regression))
        self.assertEqual(module.line.weight.tolist(), plain.line.weight.tolist())

    def test_steps_around_a_model_of_another_class(self):
        class Around(TrainingModule):
            def __init__(self):
                super().__init__()
                self.net = nn.Sequential(nn.Linear(3, 1))

            def model(self):
                return self.net

            def loss(self, output, batch):
                return F.mse_loss(output, batch[1])

            def validation_step(self, batch, batch_idx):
                self.log("val_loss", self.loss(self.net(batch[0]), batch))

            def configure_optimizers(self):
                return optim.SGD(self.net.named_parameters(), lr=0.1)

        class Attribute(Around):  # as a Lightning module has it: nothing but a child
            model = TrainingModule.model

            def __init__(self):
                super().__init__()
                self.model = self.net

            def forward(self, x):
                return self.model(x)

        class None_(Around):
            def model(self):
                pass

        fits = quiet(max_epochs=1), quiet(max_epochs=1)
        around, attribute = fit(fits[0], made(Around)), fit(fits[1], made(Attribute))
        self.assertEqual(around.net[0].weight.tolist(), attribute.net[0].weight.tolist())
        fits[0].fabric.save(self.path("around.safetensors"))
        self.assertEqual(sorted(weft.load_file(self.path("around.safetensors"))), ["0.bias", "0.weight"])
        with self.assertRaisesRegex(TypeError, "model: expected a module, got NoneType"):
            fit(quiet(max_epochs=1), None_())

    def test_several_optimizers(self):
        class Adversaries(TrainingModule):
            def __init__(self):
                super().__init__()
                self.automatic_optimization = False
                self.generator = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 1))
                self.critic = nn.Sequential(nn.Linear(1, 8), nn.SiLU(), nn.Linear(8, 1))

            def forward(self, x):
                return self.generator(x)

            def models(self):
                return {"generator": self.generator, "critic": self.critic}

            def judged(self, x, real):
                logits = self.critic(x)
                return F.binary_cross_entropy_with_logits(logits, weft.full(logits.shape, real))

            def training_step(self, batch, batch_idx):
                x, y = batch
                draws, judges = self.optimizers()
                fake = self.generator(x)
                judges.zero_grad()
                missed = self.judged(y, 1.0) + self.judged(fake.detach(), 0.0)
                self.manual_backward(missed)
                judges.step()
                draws.zero_grad()
                seen = self.judged(fake, 1.0)
                self.manual_backward(seen)
                draws.step()
                self.lr_schedulers()[0].step()
                self.log_dict({"missed": missed, "seen": seen})

            def configure_optimizers(self):
                draws = optim.Adam(self.generator.named_parameters(), lr=0.02)
                return [(draws, lr_scheduler.exponential(0.5)), optim.Adam(self.critic.named_parameters(), lr=0.01)]

        module, trainer = made(Adversaries), quiet(max_epochs=2)
        weights = module.generator[0].weight.tolist(), module.critic[0].weight.tolist()
        losses = []

        class Losses(Callback):
            def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
                losses.append(outputs["loss"])

        trainer.add_callback(Losses())
        trainer.seed_everything(1)
        trainer.fit(module, line(16, 4))
        self.assertEqual(trainer.global_step, 8)
        self.assertEqual([o.lr for o in trainer.optimizers], [0.02 * 0.5**8, 0.01])
        self.assertEqual(losses, [None] * 8)
        self.assertNotEqual(module.generator[0].weight.tolist(), weights[0])
        self.assertNotEqual(module.critic[0].weight.tolist(), weights[1])
        path = self.path("pair.safetensors")
        trainer.save_checkpoint(path)
        other = Adversaries()
        parts = quiet(max_epochs=1, limit_predict_batches=2).predict(other, line(16, 4), ckpt_path=path)
        self.assertEqual([part.shape for part in parts], [(4, 1), (4, 1)])
        self.assertEqual(other.critic[0].weight.tolist(), module.critic[0].weight.tolist())
        again = made(Adversaries)
        again.automatic_optimization = True
        with self.assertRaisesRegex(weft.Error, "2 optimizers of 2 models: .* automatic_optimization = false"):
            fit(quiet(max_epochs=1), again)

    def test_a_step_by_hand_calls_the_model_not_its_forward(self):
        class Own(Regression):
            def __init__(self, by_hand):
                TrainingModule.__init__(self)
                self.automatic_optimization = not by_hand
                self.weight = nn.Parameter(weft.zeros(3, 1))
                self.dtypes = set()

            def forward(self, x):
                y = x @ self.weight
                self.dtypes.add(y.dtype)
                return y

            def training_step(self, batch, batch_idx):
                loss = F.mse_loss(self.forward(batch[0]), batch[1])
                if not self.automatic_optimization:
                    self.optimizers().zero_grad()
                    self.manual_backward(loss)
                    self.optimizers().step()
                return loss

        fit(quiet(max_epochs=1), Own(True))
        in_bf16 = dict(max_epochs=1, limit_val_batches=0, precision="bf16-mixed")
        # A step that is not taken by hand is a call of the model as a whole.
        self.assertEqual(fit(quiet(**in_bf16), Own(False)).dtypes, {weft.bfloat16})
        with self.assertRaisesRegex(weft.Error, r"forward\(\) of the model .*Own was called from outside of the model, "
                                    "where it would not run in bf16-mixed; call model.x."):
            fit(quiet(**in_bf16), Own(True))

    def test_test_and_predict(self):
        class Tested(Regression):
            def test_step(self, batch, batch_idx):
                loss = F.mse_loss(self(batch[0]), batch[1])
                self.log("test_loss", loss)
                return {"index": batch_idx}

            def predict_step(self, batch, batch_idx):
                return self(batch[0]) * 2

        class Heard(Callback):
            def __init__(self):
                super().__init__()
                self.lines = []

            def on_test_start(self, trainer, module):
                self.lines.append("start")

            def on_test_batch_end(self, trainer, module, outputs, batch, batch_idx):
                self.lines.append(outputs)

            def on_test_end(self, trainer, module):
                self.lines.append("end")

        heard = Heard()
        trainer = quiet(max_epochs=3, callbacks=[heard])
        module = fit(trainer, made(Tested))
        tested = trainer.test(module, line(8, 4))
        self.assertEqual(tested, {"test_loss": trainer.validate(module, line(8, 4))["val_loss"]})
        self.assertEqual(heard.lines, ["start", {"index": 0}, {"index": 1}, "end"])
        doubled = trainer.predict(module, line(8, 4))
        other = quiet(max_epochs=3)
        plain = other.predict(fit(other, made(Regression)), line(8, 4))
        self.assertEqual([(x * 2).tolist() for x in plain], [x.tolist() for x in doubled])
        with self.assertRaisesRegex(weft.Error, "defines no test_step"):
            trainer.test(Regression(), line(8, 4))
        with self.assertRaisesRegex(TypeError, "predict_step: expected a tensor, got NoneType"):
            Tested.predict_step = lambda self, batch, batch_idx: None
            trainer.predict(module, line(8, 4))

    def test_errors_are_pythons_own(self):
        class Fails(Callback):
            seen = None

            def on_train_batch_start(self, trainer, module, batch, batch_idx):
                if batch_idx == 1:
                    raise KeyError("batch one")

            def on_exception(self, trainer, module, exception):
                self.seen = exception

        fails = Fails()
        with self.assertRaises(KeyError) as caught:
            fit(quiet(max_epochs=1, callbacks=[fails]))
        self.assertIs(fails.seen, caught.exception)

        class NoLoss(Regression):
            def training_step(self, batch, batch_idx):
                pass

        class NoLossInside(Regression):
            def training_step(self, batch, batch_idx):
                return {"prediction": 1}

        class NoOptimizer(Regression):
            def configure_optimizers(self):
                return [1]

        class Nested(Regression):
            def configure_optimizers(self):
                return [[]]

        class NoRate(Regression):
            def configure_optimizers(self):
                return optim.SGD(self.named_parameters(), lr=0.1), lambda step: "high"

        class Nothing(TrainingModule):
            pass

        expected = 'training_step: expected the loss, a tensor, or a dict with one as "loss", got NoneType'
        for module in (NoLoss(), NoLossInside()):
            with self.assertRaisesRegex(TypeError, expected):
                fit(quiet(max_epochs=1), module)
        with self.assertRaisesRegex(TypeError, r"configure_optimizers: expected an optimizer, .*got 1"):
            fit(quiet(max_epochs=1), NoOptimizer())
        with self.assertRaisesRegex(TypeError, r"configure_optimizers: expected an optimizer, .*got \[\]"):
            fit(quiet(max_epochs=1), Nested())
        with self.assertRaisesRegex(
            TypeError, "configure_optimizers: expected a number from the schedule for step 0, got 'high', a str"
        ):
            fit(quiet(max_epochs=1), NoRate())
        with self.assertRaisesRegex(weft.Error, "configure_optimizers"):
            fit(quiet(max_epochs=1), Nothing())
        with self.assertRaisesRegex(ValueError, "expected batches, got a list without any"):
            quiet(max_epochs=1).fit(Regression(), [])
        with self.assertRaisesRegex(TypeError, "generator has no __len__"):
            quiet(max_epochs=1).fit(Regression(), (batch for batch in line(16, 4)))
        with self.assertRaisesRegex(TypeError, "object has no __iter__"):
            quiet(max_epochs=1).validate(Regression(), object())
        with self.assertRaisesRegex(TypeError, "batch 1 of a list: .*tensors, got a tuple with a str"):
            quiet(max_epochs=1).fit(Regression(), [*line(4, 4), ("x", "y")])
        with self.assertRaisesRegex(TypeError, "batch 0 of a list: .*tensors, got dict"):
            quiet(max_epochs=1).fit(Regression(), [{}])
        with self.assertRaisesRegex(weft.Error, "say when to stop"):
            quiet()
        with self.assertRaisesRegex(weft.Error, 'gradient_clip_algorithm: expected one of "norm", "value", got "l2"'):
            quiet(max_epochs=1, gradient_clip_algorithm="l2")
        with self.assertRaisesRegex(weft.Error, "limit_train_batches: expected a positive count or a fraction"):
            quiet(max_epochs=1, limit_train_batches=0)
        with self.assertRaisesRegex(TypeError, 'Trainer: unknown option "max_epoch"; did you mean "max_epochs"'):
            quiet(max_epoch=1)
        with self.assertRaisesRegex(TypeError, 'EarlyStopping: unknown option "patiense"; did you mean "patience"'):
            EarlyStopping(monitor="val_loss", patiense=3)
        with self.assertRaisesRegex(weft.Error, 'a time: expected seconds, .*"DD:HH:MM:SS", got "soon"'):
            quiet(max_time="soon")
        with self.assertRaisesRegex(weft.Error, "max_time: expected a positive duration, got -1 s"):
            quiet(max_time=-1)

    def test_limits_are_counts_or_fractions(self):
        for limit, steps in ((2, 2), (0.5, 4), (1.0, 8)):
            trainer = quiet(max_epochs=1, limit_train_batches=limit)
            fit(trainer, batch_size=2)
            self.assertEqual(trainer.global_step, steps)
        for time in (timedelta(microseconds=1), 1e-6, "0.000001s"):
            trainer = quiet(max_time=time, gradient_clip_val=0.5, track_grad_norm=True)
            fit(trainer)
            self.assertEqual(trainer.global_step, 1)
            self.assertEqual(trainer.stop_reason, "max_time = 1e-06 s")
            self.assertGreater(trainer.grad_norm, 0)
        for time in ("00:00:01:00", "1m", 60):
            trainer = quiet(max_time=time, max_epochs=1)
            fit(trainer)
            self.assertEqual(trainer.stop_reason, "max_epochs = 1")

    def test_no_limit_of_steps_and_no_validation_have_lightnings_numbers(self):
        trainer = quiet(max_epochs=2, max_steps=-1, limit_val_batches=0)
        fit(trainer)
        self.assertEqual((trainer.epoch, trainer.global_step), (2, 8))
        self.assertEqual(list(trainer.metrics), ["train_loss"])

    def test_none_is_an_options_default(self):
        kept = ModelCheckpoint(
            dirpath=None, filename=None, monitor=None, mode=None, save_top_k=None, save_last=None,
            every_n_train_steps=None, train_time_interval=None,
        )
        stops = EarlyStopping(monitor="val_loss", mode=None, patience=None, min_delta=None, check_finite=None)
        average = weft.train.EmaWeightAveraging(decay=None, update_starting_at_step=None)
        trainer = quiet(
            max_epochs=2, max_steps=None, max_time=None, limit_train_batches=None, limit_val_batches=None,
            limit_test_batches=None, limit_predict_batches=None, val_check_interval=None, num_sanity_val_steps=None,
            accumulate_grad_batches=None, gradient_clip_val=None, gradient_clip_algorithm=None, precision=None,
            log_every_n_steps=None, detect_anomaly=None, directory=self.path("run"), loggers=None,
            callbacks=[kept, stops, average],
        )
        module = fit(trainer)
        self.assertEqual((trainer.epoch, trainer.global_step, stops.wait_count), (2, 8, 0))
        self.assertEqual(kept.kept, [self.path("run", "checkpoints", "epoch=2-step=8.safetensors")])
        self.assertEqual(kept.last_model_path, "")
        plain = fit(quiet(max_epochs=2))
        self.assertEqual(module.line.weight.shape, plain.line.weight.shape)
        with self.assertRaisesRegex(weft.Error, "say when to stop"):
            quiet(max_epochs=None, max_steps=None, max_time=None)

    def test_batches_between_validations_are_counted_over_epochs(self):
        class Hears(Callback):
            def __init__(self):
                super().__init__()
                self.steps = []

            def on_validation_end(self, trainer, module):
                self.steps.append(trainer.global_step)

        for interval, steps in ((3, [3, 6, 9, 12]), (5, [5, 10])):
            hears = Hears()
            fit(quiet(max_epochs=3, val_check_interval=interval, check_val_every_n_epoch=None, callbacks=[hears]))
            self.assertEqual(hears.steps, steps)
        with self.assertRaisesRegex(weft.Error, "check_val_every_n_epoch is None, got the fraction 1"):
            quiet(max_epochs=3, check_val_every_n_epoch=None)

    def test_it_stops_early_and_keeps_the_best(self):
        class Waits(EarlyStopping):
            looks = 0

            def on_validation_end(self, trainer, module):
                self.looks += 1
                super().on_validation_end(trainer, module)

        class Worse(Regression):
            def validation_step(self, batch, batch_idx):
                self.log("val_loss", abs(self.trainer.epoch - 1) + 1.0)

        waits = Waits(monitor="val_loss", patience=2)
        kept = ModelCheckpoint(dirpath=self.path("kept"), filename="{epoch}", monitor="val_loss", save_top_k=2)
        trainer = quiet(max_epochs=10, callbacks=[waits, kept])
        fit(trainer, Worse())
        self.assertEqual((trainer.epoch, waits.stopped_epoch, waits.looks), (4, 3, 4))
        self.assertEqual((waits.best_score, kept.best_model_score), (1, 1))
        self.assertEqual(len(kept.kept), 2)
        self.assertEqual(kept.best_model_path, self.path("kept", "epoch=2.safetensors"))
        self.assertTrue(os.path.exists(kept.best_model_path))
        with self.assertRaisesRegex(weft.Error, 'mode: expected one of "min", "max", got "best"'):
            ModelCheckpoint(mode="best")

    def test_a_fit_goes_on_with_the_same_bits(self):
        class Counts(Callback):
            batches = 0

            def __init__(self):
                super().__init__()
                self.sum = weft.zeros(3)

            def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
                self.batches += 1
                self.sum += batch[0].sum(0)

            def state_dict(self):
                return {"batches": self.batches, "sum": self.sum, "best": float("inf")}

            def load_state_dict(self, state):
                self.batches, self.sum = state["batches"], state["sum"]
                assert state["best"] == float("inf")

        counts = Counts()
        whole = fit(quiet(max_epochs=3, callbacks=[counts]))
        first = quiet(max_steps=6, directory=self.path("run"), callbacks=[Counts()])
        fit(first)
        del first  # which holds the directory
        last = self.path("run", "checkpoints", "last.safetensors")
        with open(self.path("run", "metrics.jsonl")) as file:
            self.assertIn("train_loss", json.loads(file.readline()))
        again = Counts()
        rest = quiet(max_epochs=3, directory=self.path("run"), callbacks=[again])
        module = fit(rest, ckpt_path=last)
        self.assertEqual(module.line.weight.tolist(), whole.line.weight.tolist())
        self.assertEqual((again.batches, counts.batches), (12, 12))
        self.assertEqual(again.sum.tolist(), counts.sum.tolist())
        with self.assertRaisesRegex(weft.Error, "nowhere"):
            fit(quiet(max_epochs=1), ckpt_path=self.path("nowhere"))

    def test_other_callbacks_and_loggers(self):
        said = []

        class Remember(weft.train.Logger):
            def log_metrics(self, metrics, step):
                said.append((step, metrics))

            def end_epoch(self, epoch, step, metrics):
                said.append((epoch, step))

        average = weft.train.EmaWeightAveraging(decay=0.9)
        watch = weft.train.WatchLayers(every_n_steps=2)
        fit(quiet(max_epochs=1, callbacks=[average, watch], loggers=[Remember()], log_every_n_steps=2))
        self.assertEqual(len(average.averages), 2)
        self.assertIn((0, 4), said)
        second = dict(figures for step, metrics in said if step == 2 and isinstance(metrics, dict)
                      for figures in metrics.items())
        self.assertEqual(second["lr"], 0.1)
        self.assertIn("train_loss_step", second)
        self.assertTrue(any("line" in name for name in second), second)


class Ranks(unittest.TestCase):
    def test_two_ranks_learn_what_one_learns(self):
        here = os.path.dirname(os.path.abspath(__file__))
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "program.py")
            with open(program, "w") as file:
                file.write(RANKS)
            results = []
            for devices in ("1", "2"):
                path = os.path.join(folder, devices + ".safetensors")
                run = subprocess.run(
                    [sys.executable, program, here, devices, path], stdout=subprocess.PIPE, text=True, timeout=300,
                    env=dict(os.environ, OMP_NUM_THREADS="1"),
                )
                self.assertEqual(run.returncode, 0)
                ranks, loss = run.stdout.split()
                self.assertEqual(ranks, devices)
                results.append((float(loss), weft.load_file(path)))
            (alone, state), (shared, halves) = results
            self.assertAlmostEqual(alone, shared, places=5)
            for name, tensor in state.items():
                self.assertLess((tensor - halves[name]).abs().max().item(), 1e-5)


if __name__ == "__main__":
    unittest.main()
