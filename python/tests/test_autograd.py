"""Gradients from Python: backward and grad, hooks, modes, checkpointing, functions of one's own."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import unittest
import weakref

import weft
from weft.autograd import Function, checkpoint, detect_anomaly, grad


class Copied(Function):
    """The input's values; a class below it has a backward."""

    @staticmethod
    def forward(ctx, x):
        return x * 1


class Square(Function):
    @staticmethod
    def forward(ctx, x, power=2):
        ctx.save_for_backward(x)
        ctx.power = power
        return x**power

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return dy * ctx.power * x ** (ctx.power - 1), None


class Backward(unittest.TestCase):
    def test_backward_of_several_tensors(self):
        x, y = (weft.ones(2, requires_grad=True) for _ in range(2))
        weft.autograd.backward([x.sum(), y * 2], [None, weft.tensor([1.0, 3.0])])
        self.assertEqual((x.grad.tolist(), y.grad.tolist()), ([1.0, 1.0], [2.0, 6.0]))
        with self.assertRaisesRegex(ValueError, "for each of 2 tensors, got 1"):
            weft.autograd.backward([x.sum(), y.sum()], [weft.tensor(1.0)])

    def test_gradients_accumulate(self):
        x = weft.tensor([1.0, 2.0], requires_grad=True)
        self.assertIsNone(x.grad)
        (x * x).sum().backward()
        self.assertEqual(x.grad.tolist(), [2.0, 4.0])
        (x * x).sum().backward()
        self.assertEqual(x.grad.tolist(), [4.0, 8.0])
        x.grad = None
        self.assertIsNone(x.grad)
        (x * 3).backward(weft.tensor([1.0, 10.0]))
        self.assertEqual(x.grad.tolist(), [3.0, 30.0])
        with self.assertRaisesRegex(weft.Error, "expected the shape"):
            x.grad = weft.zeros(3)

    def test_errors(self):
        x = weft.tensor([1.0, 2.0], requires_grad=True)
        self.assertRaises(weft.Error, (x * 2).backward)
        self.assertRaises(weft.Error, weft.ones(1).backward)
        y = (x * x).sum()
        y.backward()
        self.assertRaises(weft.Error, y.backward)
        z = x * 1
        w = z * z
        z += 1
        with self.assertRaisesRegex(weft.Error, "mul"):
            w.sum().backward()

    def test_grad_and_second_derivatives(self):
        x = weft.tensor([2.0], requires_grad=True)
        (first,) = grad((x**3).sum(), x, create_graph=True)
        (second,) = grad(first.sum(), x)
        self.assertEqual((first.item(), second.item()), (12.0, 12.0))
        self.assertIsNone(x.grad)
        y = weft.tensor([1.0], requires_grad=True)
        self.assertEqual(grad(x * 2, [x, y], allow_unused=True)[1], None)
        self.assertRaises(weft.Error, grad, x * 2, [x, y])

    def test_modes(self):
        x = weft.tensor([1.0], requires_grad=True)
        with weft.no_grad():
            self.assertFalse((x * 2).requires_grad)
            with weft.enable_grad():
                self.assertTrue((x * 2).requires_grad)
        self.assertTrue(weft.is_grad_enabled())

        @weft.no_grad()
        def silent(x):
            return x * 2

        self.assertFalse(silent(x).requires_grad)
        with self.assertRaises(KeyError), weft.no_grad():
            raise KeyError
        self.assertTrue(weft.is_grad_enabled())
        with weft.autocast(weft.bfloat16):
            self.assertEqual((weft.ones(2, 2) @ weft.ones(2, 2)).dtype, weft.bfloat16)
        self.assertEqual((weft.ones(2, 2) @ weft.ones(2, 2)).dtype, weft.float32)
        with detect_anomaly(), self.assertRaisesRegex(weft.Error, "log"):
            (x - 2).log()

    def test_modes_belong_to_a_thread(self):
        seen = []
        with weft.no_grad():
            thread = threading.Thread(target=lambda: seen.append(weft.is_grad_enabled()))
            thread.start()
            thread.join()
        self.assertEqual(seen, [True])

    def test_hooks(self):
        x = weft.tensor([1.0], requires_grad=True)
        y = x * 2
        seen = []
        handle = y.register_hook(lambda g: seen.append(g.item()))
        doubling = x.register_hook(lambda g: g * 2)
        x.register_post_accumulate_grad_hook(lambda: seen.append("ready"))
        (y * 3).backward()
        self.assertEqual((seen, x.grad.item()), ([3.0, "ready"], 12.0))
        handle.remove()
        doubling.remove()
        x.grad = None
        (x * 5).backward()
        self.assertEqual(x.grad.item(), 5.0)

        def fails(g):
            raise KeyError("from a hook")

        x.register_hook(fails)
        with self.assertRaisesRegex(KeyError, "from a hook"):
            (x * 2).backward()

    def test_fused(self):
        def chain(x, y, z):
            return (x * y + z).sigmoid() * x - y

        runs = []
        for function in (chain, lambda *inputs: weft.fused(chain, *inputs)):
            weft.manual_seed(0)
            inputs = [weft.randn(5, 33, requires_grad=True) for _ in range(3)]
            y = function(*inputs)
            y.sum().backward()
            runs.append([x.tolist() for x in (y.detach(), *(x.grad for x in inputs))])
        self.assertEqual(runs[0], runs[1])

    def test_checkpoint(self):
        x = weft.tensor([1.0, 2.0], requires_grad=True)
        weights = weft.tensor([3.0, 4.0], requires_grad=True)
        runs = []

        def block(x):
            runs.append(1)
            return (x * weights).exp()

        checkpoint(block, x).sum().backward()
        self.assertEqual(len(runs), 2)
        kept, kept_weights = x.grad.tolist(), weights.grad.tolist()
        x.grad = weights.grad = None
        block(x).sum().backward()
        self.assertEqual((x.grad.tolist(), weights.grad.tolist()), (kept, kept_weights))


class Functions(unittest.TestCase):
    def test_gradient_of_ones_own(self):
        x = weft.tensor([3.0], requires_grad=True)
        Square.apply(x).backward()
        self.assertEqual(x.grad.item(), 6.0)
        (first,) = grad(Square.apply(x, 3), x, create_graph=True)
        (second,) = grad(first, x)
        self.assertEqual((first.item(), second.item()), (27.0, 18.0))
        self.assertEqual(Square.apply(x, 3).grad_fn, "Square")
        with weft.no_grad():
            self.assertFalse(Square.apply(x).requires_grad)

    def test_several_outputs_and_saved_outputs(self):
        class Both(Function):
            @staticmethod
            def forward(ctx, x, y):
                s, e = x + y, x.exp()
                ctx.save_for_backward(e, None)
                return s, e

            @staticmethod
            def backward(ctx, ds, de):
                e, nothing = ctx.saved_tensors
                assert nothing is None
                zero = weft.zeros_like(e)
                ds = zero if ds is None else ds
                de = zero if de is None else de
                return ds + de * e, ds

        x = weft.tensor([0.0], requires_grad=True)
        y = weft.tensor([1.0])
        s, e = Both.apply(x, y)
        (s * 2 + e * 3).backward()
        self.assertEqual(x.grad.item(), 5.0)
        x.grad = None
        Both.apply(x, y)[1].backward()
        self.assertEqual(x.grad.item(), 1.0)

    def test_what_goes_wrong_inside_comes_out(self):
        class Wrong(Copied):
            @staticmethod
            def backward(ctx, dy):
                raise ValueError("no gradient today")

        class Few(Wrong):
            @staticmethod
            def backward(ctx, dy):
                return ()

        x = weft.tensor([1.0], requires_grad=True)
        with self.assertRaisesRegex(ValueError, "no gradient today"):
            Wrong.apply(x).backward()
        with self.assertRaisesRegex(RuntimeError, "Few: backward returned 0 gradients for 1"):
            Few.apply(x).backward()

    def test_gradients_have_the_shape_of_what_they_are_of(self):
        for wrong in ((1,), (2, 2), (7, 7, 7), (0,)):

            class Wrong(Copied):
                @staticmethod
                def backward(ctx, dy):
                    return weft.ones(*wrong)

            x = weft.randn(2, 3, 8).requires_grad_()
            message = "its gradient function returned .* for input 0, expected the shape"
            with self.assertRaisesRegex(weft.Error, message):
                Wrong.apply(weft.nn.functional.softmax(x, -1)).sum().backward()
            y = weft.ones(4, requires_grad=True)
            y.register_hook(lambda g: weft.ones(*wrong))
            with self.assertRaisesRegex(weft.Error, "a hook of a leaf returned"):
                (y * 2).sum().backward()

    def test_what_is_no_tensor_is_a_type_error(self):
        x = weft.ones(2, requires_grad=True)
        x.register_hook(lambda g: "a")
        with self.assertRaisesRegex(TypeError, "what a function returned, has another type"):
            (x * 2).sum().backward()
        with self.assertRaisesRegex(TypeError, "another type"):
            x.to(3.0)

    def test_gradients_get_the_dtype_of_what_they_are_of(self):
        class Wide(Copied):
            @staticmethod
            def backward(ctx, dy):
                return dy.to(weft.float64) * 3

        x = weft.ones(2, requires_grad=True)
        Wide.apply(x).sum().backward()
        self.assertEqual(x.grad.dtype, weft.float32)
        self.assertEqual(x.grad.tolist(), [3, 3])
        with self.assertRaisesRegex(weft.Error, "grad: expected the shape, dtype and device"):
            x.grad = weft.ones(2, dtype=weft.float64)

    def test_graphs_are_freed(self):
        x = weft.tensor([1.0], requires_grad=True)
        marker = type("Marker", (), {})()
        gone = weakref.ref(marker)
        y = x * 2
        y.register_hook(lambda g, marker=marker: None)
        (y * 2).backward()
        del y, marker
        gc.collect()
        self.assertIsNone(gone())

    def test_a_removed_hook_releases_its_tensor(self):
        x = weft.ones(1, requires_grad=True)
        marker = type("Marker", (), {})()
        gone = weakref.ref(marker)
        handle = x.register_hook(lambda g, x=x, marker=marker: None)
        ready = x.register_post_accumulate_grad_hook(lambda x=x, marker=marker: None)
        x.sum().backward()
        del x, marker
        handle.remove()
        self.assertIsNotNone(gone())
        ready.remove()
        gc.collect()
        self.assertIsNone(gone())
        handle.remove()


class Process(unittest.TestCase):
    def test_control_c_ends_a_loop(self):
        # A program that a shell starts in the background ignores Ctrl-C, and so does what it starts.
        code = (
            "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "import weft\nx = weft.ones(64, 64)\nprint('ready', flush=True)\n"
            "while True:\n    x = (x @ x).tanh()\n"
        )
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            self.assertEqual(process.stdout.readline(), b"ready\n")
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
            self.assertIn(b"KeyboardInterrupt", errors)
        finally:
            process.kill()
            process.wait()

    def test_kernels_run_without_the_lock(self):
        x = weft.ones(700, 700)
        x @ x
        ticks = []
        done = threading.Event()

        def tick():
            while not done.is_set():
                ticks.append(time.monotonic())
                time.sleep(0.0005)

        thread = threading.Thread(target=tick)
        switch = sys.getswitchinterval()
        sys.setswitchinterval(10)  # nobody is asked to give the lock up
        thread.start()
        try:
            for _ in range(20):
                x @ x
            seen = len(ticks)
        finally:
            done.set()
            sys.setswitchinterval(switch)
            thread.join()
        self.assertGreater(seen, 5)

    def test_memory_of_python_may_be_given_back_at_the_end(self):
        code = "import weft\nx = weft.as_tensor(bytearray(8))\nimport sys\nsys.modules['kept'] = x\n"
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=os.environ)


if __name__ == "__main__":
    unittest.main()
