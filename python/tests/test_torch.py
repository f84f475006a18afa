"""weft.torch: Weft's kernels in PyTorch's models, and a GPU's tensor cores under them."""

import collections
import copy
import math
import unittest
import warnings

import weft
from optional import _import, needs_torch, torch
from weft import numerics

if torch:
    import torch.nn.functional as F
    from functorch.compile import make_boxed_func
    from torch import nn
    from torch._dynamo.backends.common import aot_autograd
    from torch.utils._python_dispatch import TorchDispatchMode

    from weft.torch import _kernels

torchvision = _import("torchvision") if torch else None
transformers = _import("transformers") if torch else None


def _model():
    """A convolution, attention, layer norms, GELU, linear layers."""

    class Block(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
            self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

        def forward(self, x):
            y = self.norm_1(x)
            x = x + self.attention(y, y, y, need_weights=False)[0]
            return x + self.mlp(self.norm_2(x))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.block, self.head = nn.Conv2d(3, 16, 4, 4), Block(16, 2), nn.Linear(16, 10)

        def forward(self, x):
            return self.head(self.block(self.stem(x).flatten(2).mT).mean(1)).log_softmax(-1)

    torch.manual_seed(0)
    return Model(), torch.randn(2, 3, 16, 16)


def _gradients(model, x):
    model.zero_grad()
    y = model(x)
    y[:, 0].sum().backward()
    return [y.detach()] + [p.grad.clone() for p in model.parameters()]


def _calls(run):
    """How often each operator of PyTorch's and of Weft's ran."""
    counts = collections.Counter()

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            counts[str(function.overloadpacket).replace(".", "::")] += 1
            return function(*args, **(kwargs or {}))

    with Count():
        run()
    return counts


def _random(*shape, dtype=None):
    return torch.randn(*shape, dtype=dtype or torch.float32).requires_grad_()


@needs_torch
class Use(unittest.TestCase):
    def assert_close(self, some, others, tolerance=1e-5):
        self.assertEqual(len(some), len(others))
        for a, b in zip(some, others):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)

    def test_operators_keep_their_word(self):
        torch.manual_seed(0)
        mask = torch.rand(2, 1, 5, 6) > 0.3
        mask[0, 0, 0] = False
        added = torch.randn(2, 1, 5, 6).masked_fill(~mask, -math.inf)
        for dtype in (torch.float32, torch.bfloat16):
            def t(*shape):
                return _random(*shape, dtype=dtype)

            for operator, arguments in (
                (_kernels.matmul, (t(2, 3, 4), t(4, 5))),
                (_kernels.linear, (t(2, 3, 4), t(5, 4), t(5))),
                (_kernels.linear, (t(4), t(5, 4), None)),
                (_kernels.layer_norm, (t(2, 3, 8), t(8), t(8), 1e-5)),
                (_kernels.layer_norm, (t(2, 8), None, None, 1e-5)),
                (_kernels.softmax, (t(2, 3, 8), 1, False)),
                (_kernels.softmax, (t(2, 8), -1, True)),
                (_kernels.gelu, (t(2, 8), "none")),
                (_kernels.gelu, (t(2, 8), "tanh")),
                (_kernels.attention, (t(2, 4, 5, 8), t(2, 2, 6, 8), t(2, 2, 6, 8), None, True, 0.3)),
                (_kernels.attention, (t(2, 2, 5, 8), t(2, 2, 6, 8), t(2, 2, 6, 8), mask, False, 0.3)),
                (_kernels.attention, (t(2, 2, 5, 8), t(2, 2, 6, 8), t(2, 2, 6, 8), added.to(dtype), False, 0.3)),
                (_kernels.conv2d, (t(2, 4, 7, 8), t(6, 2, 3, 3), t(6), [2, 1], [1, 0], [1, 2], 2)),
            ):
                with self.subTest(operator=operator._name, dtype=dtype):
                    torch.library.opcheck(operator, arguments)

    def test_gradients_in_float64(self):
        torch.manual_seed(0)

        def t(*shape):
            return _random(*shape, dtype=torch.float64)

        mask = torch.rand(2, 1, 3, 4) > 0.3
        for function, arguments in (
            (_kernels.matmul, (t(2, 3, 4), t(4, 5))),
            (_kernels.linear, (t(2, 3, 4), t(5, 4), t(5))),
            (lambda *a: _kernels.layer_norm(*a, 1e-5)[0], (t(3, 8), t(8), t(8))),
            (lambda x: _kernels.softmax(x, 0, False), (t(3, 4),)),
            (lambda x: _kernels.softmax(x, 1, True), (t(3, 4),)),
            (lambda x: _kernels.gelu(x, "none"), (t(3, 4),)),
            (lambda x: _kernels.gelu(x, "tanh"), (t(3, 4),)),
            (lambda *a: _kernels.attention(*a, None, True, 0.5)[0], (t(1, 2, 3, 4), t(1, 1, 5, 4), t(1, 1, 5, 4))),
            (lambda *a: _kernels.attention(*a, mask, False, 0.5)[0], (t(2, 2, 3, 4), t(2, 2, 4, 4), t(2, 2, 4, 4))),
            (lambda *a: _kernels.attention(*a, mask.double(), False, 0.5)[0], (t(2, 2, 3, 4), t(2, 2, 4, 4), t(2, 2, 4, 4))),
            (lambda *a: _kernels.conv2d(*a, [2, 1], [1, 0], [1, 2], 2), (t(2, 2, 5, 6), t(4, 1, 3, 3), t(4))),
        ):
            self.assertTrue(torch.autograd.gradcheck(function, arguments))
        self.assertTrue(torch.autograd.gradgradcheck(_kernels.linear, (t(2, 3), t(4, 3), t(4))))

    def test_a_model_runs_on_weft(self):
        model, x = _model()
        theirs = _gradients(model, x)
        ours = weft.torch.use(copy.deepcopy(model))
        calls = _calls(lambda: self.assert_close(_gradients(ours, x), theirs))
        for name, count in (
            ("weft::conv2d", 1),
            ("weft::conv2d_backward", 1),
            ("weft::layer_norm", 2),
            ("weft::layer_norm_backward", 2),
            ("weft::gelu_backward", 1),
            ("weft::linear", 5),
            ("weft::scaled_dot_product_attention", 1),
            ("weft::scaled_dot_product_attention_backward", 1),
            ("weft::softmax_backward", 1),
        ):
            self.assertEqual(calls[name], count, name)
        self.assertFalse({"aten::mm", "aten::addmm", "aten::bmm", "aten::convolution"} & calls.keys())
        # Where modules have fused forms of their own.
        ours.eval()
        with torch.no_grad():
            self.assertEqual(_calls(lambda: ours(x))["weft::scaled_dot_product_attention"], 1)
        # Some ops alone, none, and a copy that is a model of its own.
        weft.torch.use(ours, ["layer_norm"])
        calls = _calls(lambda: ours(x))
        self.assertEqual((calls["weft::layer_norm"], calls["weft::linear"]), (2, 0))
        other = copy.deepcopy(ours)
        with torch.no_grad():
            other.head.weight.zero_()
            other.head.bias.zero_()
            self.assertEqual(other(x)[0, 0].item(), other(x)[1, 3].item())
            self.assertNotEqual(ours(x)[0, 0].item(), ours(x)[1, 3].item())
        weft.torch.use(ours, [])
        self.assertNotIn("forward", vars(ours))
        self.assertFalse([name for name in _calls(lambda: ours(x)) if name.startswith("weft::")])

    def test_torch_compile_keeps_the_operators(self):
        model, x = _model()
        theirs = _gradients(model, x)
        ours = weft.torch.use(copy.deepcopy(model))
        nodes = collections.Counter()

        def count(graph, inputs):
            nodes.update(str(node.target) for node in graph.graph.nodes)
            return make_boxed_func(graph.forward)

        compiled = torch.compile(ours, backend=aot_autograd(fw_compiler=count), fullgraph=True)
        self.assert_close(_gradients(compiled, x), theirs)
        self.assertEqual(nodes["weft.linear.default"], 5)
        self.assertEqual(nodes["weft.scaled_dot_product_attention_backward.default"], 1)

    def test_autocast_and_narrow_models(self):
        model, x = _model()
        ours = weft.torch.use(copy.deepcopy(model))
        with torch.autocast("cpu", torch.bfloat16):
            a, b = model(x), ours(x)
        self.assertEqual(a.dtype, b.dtype)
        self.assert_close([a], [b], 0.02)
        a, b = model.bfloat16()(x.bfloat16()), ours.bfloat16()(x.bfloat16())
        self.assertEqual(b.dtype, torch.bfloat16)
        self.assert_close([a], [b], 0.02)

    def test_what_weft_does_not_take_stays_with_torch_and_says_so(self):
        class Masked(nn.Module):
            def forward(self, q, mask):
                return F.scaled_dot_product_attention(q, q, q, mask)

        q, mask = torch.randn(1, 2, 3, 4), torch.randn(3, 3)
        ours = weft.torch.use(Masked())
        self.assert_close([ours(q, mask)], [Masked()(q, mask)], 1e-5)
        mask.requires_grad_()
        with self.assertWarnsRegex(UserWarning, "scaled_dot_product_attention stays with PyTorch: its mask requires"):
            self.assertTrue(torch.equal(ours(q, mask), Masked()(q, mask)))
        with self.assertWarnsRegex(UserWarning, "linear stays with PyTorch: its operands are torch.int64"):
            whole = weft.torch.use(nn.Linear(2, 2, bias=False))
            whole.weight = nn.Parameter(torch.ones(2, 2, dtype=torch.int64), requires_grad=False)
            whole(torch.ones(1, 2, dtype=torch.int64))
        with self.assertRaisesRegex(weft.Error, "no op 'lstm'; known are linear, matmul"):
            weft.torch.use(nn.Linear(2, 2), ["lstm"])
        with self.assertRaisesRegex(weft.Error, "expected a torch.nn.Module, got int"):
            weft.torch.use(3)
        with self.assertRaises(RuntimeError):
            weft.torch.use(nn.Linear(3, 2))(torch.ones(1, 2))


def _product(gpu, format, a, b):
    """What weft.numerics has."""
    a, b = (weft.from_dlpack(t.detach()) for t in (a, b))
    return torch.from_dlpack(numerics.gemm(gpu, a, b, format=format))


@needs_torch
class Emulate(unittest.TestCase):
    def assert_bits(self, a, b):
        self.assertEqual((a.dtype, a.shape), (b.dtype, b.shape))
        self.assertTrue(torch.equal(a, b))

    def test_products_have_the_bits(self):
        torch.manual_seed(0)
        for gpu, format in (("h100", "bf16"), ("b200", "e4m3"), ("a100", "tf32"), ("v100", "fp16")):
            x, weight, bias, dy = _random(5, 40), _random(7, 40), _random(7), torch.randn(5, 7)
            with weft.torch.emulate(gpu, format):
                y = F.linear(x, weight, bias)
                y.backward(dy)
                whole = torch.ones(2, 3, dtype=torch.int64) @ torch.ones(3, 2, dtype=torch.int64)
                wide = x.double() @ weight.double().T
            self.assert_bits(y.detach(), _product(gpu, format, x, weight.T) + bias.detach())
            self.assert_bits(x.grad, _product(gpu, format, dy, weight))
            self.assert_bits(weight.grad, _product(gpu, format, dy.T, x))
            self.assertEqual(whole.tolist(), [[3, 3], [3, 3]])
            self.assert_bits(wide, x.double() @ weight.double().T)

    def test_every_form_of_a_product(self):
        torch.manual_seed(1)
        a, b, c = torch.randn(3, 4, 20), torch.randn(3, 20, 5), torch.randn(3, 4, 5)
        want = _product("h100", "bf16", a, b)
        out = torch.empty(3, 4, 5)
        with weft.torch.emulate("h100", "bf16", measures=False):
            for got in (a @ b, torch.bmm(a, b), torch.einsum("bij,bjk->bik", a, b), torch.bmm(a, b, out=out), out):
                self.assert_bits(got, want)
            self.assert_bits(a[0] @ b[0, :, 0], want[0, :, 0])
            self.assert_bits(torch.dot(a[0, 0], b[0, :, 0]), want[0, 0, 0])
            self.assert_bits(torch.baddbmm(c, a, b, beta=0.5, alpha=2), want * 2 + c * 0.5)
            self.assert_bits(c[0].clone().addmm_(a[0], b[0]), want[0] + c[0])
            self.assert_bits(torch.addmv(c[0, :, 0], a[0], b[0, :, 0]), want[0, :, 0] + c[0, :, 0])
            flat = _product("h100", "bf16", a.transpose(0, 1).reshape(4, -1), b.reshape(-1, 5))
            self.assert_bits(torch.addbmm(c[0], a, b), flat + c[0])
            half = a.bfloat16() @ b.bfloat16()
        self.assert_bits(half, want.bfloat16())

    def test_convolutions_have_the_bits_of_wefts(self):
        torch.manual_seed(2)
        options = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "groups": 2}
        x, weight, bias = (_random(*s, dtype=torch.bfloat16) for s in ((2, 4, 7, 8), (6, 2, 3, 3), (6,)))
        with weft.torch.emulate("h100", "bf16"):
            y = F.conv2d(x, weight, bias, **options)
            dy = torch.randn_like(y)
            y.backward(dy)
        theirs = [weft.from_dlpack(t.detach()).clone() for t in (x, weight, bias)]
        for t in theirs:
            t.requires_grad_(True)
        with numerics.matmul("h100"):
            z = weft.nn.functional.conv2d(*theirs, **options)
            z.backward(weft.from_dlpack(dy))
        self.assert_bits(y.detach(), torch.from_dlpack(z.detach()))
        self.assert_bits(x.grad, torch.from_dlpack(theirs[0].grad))
        self.assert_bits(weight.grad, torch.from_dlpack(theirs[1].grad))

    def test_convolutions_of_every_kind(self):
        # Values whose products and sums are exact: what is left is the geometry.
        torch.manual_seed(3)

        def whole(*shape):
            return torch.randint(-3, 4, shape).float().requires_grad_()

        for function, shapes, options in (
            (F.conv1d, ((2, 4, 9), (6, 2, 3), (6,)), {"groups": 2, "stride": 2, "padding": 1}),
            (F.conv3d, ((1, 2, 5, 6, 4), (3, 2, 3, 2, 2), (3,)), {"dilation": (2, 1, 1), "padding": 1}),
            (F.conv_transpose1d, ((2, 4, 5), (4, 3, 3)), {}),
            (
                F.conv_transpose2d,
                ((2, 4, 5, 6), (4, 3, 3, 2), (6,)),
                {"groups": 2, "stride": 2, "padding": 1, "output_padding": (1, 0)},
            ),
        ):
            operands = [whole(*shape) for shape in shapes]
            y = function(*operands, **options)
            dy = torch.randint(-3, 4, y.shape).float()
            want = [y, *torch.autograd.grad(y, operands, dy)]
            with weft.torch.emulate("h100", "bf16"):
                y = function(*operands, **options)
                got = [y, *torch.autograd.grad(y, operands, dy)]
            for a, b in zip(got, want):
                self.assert_bits(a.detach(), b.detach())

    def test_attention_is_two_products(self):
        torch.manual_seed(4)
        q, k, v = _random(1, 4, 6, 8), _random(1, 2, 6, 8), _random(1, 2, 6, 8)
        with weft.torch.emulate("a100", "fp16") as gpu:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            out.sum().backward()
        key, value = (t.repeat_interleave(2, 1) for t in (k, v))
        scores = _product("a100", "fp16", q, key.mT) * (1 / 8**0.5)
        scores.masked_fill_(torch.ones(6, 6, dtype=torch.bool).triu(1), float("-inf"))
        self.assert_bits(out.detach(), _product("a100", "fp16", scores.softmax(-1), value))
        self.assertEqual([(row["operator"], row["backward"], row["calls"]) for row in gpu.report()],
                         [("bmm", False, 2), ("bmm", True, 4)])
        for mask in (torch.rand(6, 6) > 0.3, torch.randn(6, 6)):
            plain = F.scaled_dot_product_attention(q, key, value, mask)
            with weft.torch.emulate("h100", "tf32"):
                torch.testing.assert_close(F.scaled_dot_product_attention(q, key, value, mask), plain, rtol=0.01, atol=0.01)

    def test_a_model_and_its_report(self):
        model, x = _model()
        theirs = _gradients(model, x)
        with weft.torch.emulate("h100", "bf16") as gpu:
            ours = _gradients(model, x)
        for a, b in zip(ours, theirs):
            self.assertLess((a - b).norm(), 0.02 * b.norm() + 1e-6)
        self.assertFalse(torch.equal(ours[0], theirs[0]))
        report = gpu.report()
        rows = {(row["layer"], row["operator"], row["backward"]): row for row in report}
        self.assertEqual(rows["stem", "convolution", False]["k"], 48)
        self.assertEqual(rows["block.mlp.2", "addmm", False]["calls"], 1)
        self.assertEqual(rows["block.attention", "bmm", True]["calls"], 4)
        self.assertIn(("stem", "convolution_backward", True), rows)
        for row in report:
            # Two operands rounded to 8 bits, and sums of 25.
            self.assertLess(2.0**-12, row["error"])
            self.assertLess(row["error"], 2.0**-7)
            self.assertLess(row["sum_error"], 2.0**-18)
        self.assertRegex(str(report), r"layer +operator +pass +calls +k +error +of the sums\nstem +convolution +forward +1 +48 ")
        # The same without gradients, and in the mode in which operators come whole.
        model.eval()
        outputs = []
        for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
            with weft.torch.emulate("h100", "bf16") as gpu, mode():
                outputs.append(model(x).detach().clone())
            self.assertEqual(sum(row["calls"] for row in gpu.report()), 8)
            self.assert_bits(outputs[-1], outputs[0])
        again = model(x)
        with self.assertRaisesRegex(weft.Error, "keeps no figures"):
            weft.torch.emulate("h100", measures=False).report()
        self.assertTrue(torch.equal(again, model(x)))

    def test_recurrent_layers_and_encoders(self):
        torch.manual_seed(5)
        encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0).eval()
        for model, products in ((nn.LSTM(8, 8), 6), (nn.GRU(8, 8), 6), (encoder, 6)):
            x = torch.randn(5, 2, 8)
            with weft.torch.emulate("h100", "bf16") as gpu, torch.no_grad():
                y = model(x)
            self.assertGreaterEqual(sum(row["calls"] for row in gpu.report()), products)
            first = y[0] if isinstance(y, tuple) else y
            with torch.no_grad():
                plain = model(x)
            torch.testing.assert_close(first, plain[0] if isinstance(plain, tuple) else plain, rtol=0.02, atol=0.02)

    def test_what_cannot_be_emulated_is_an_error(self):
        with self.assertRaisesRegex(weft.Error, "tensor cores of v100 take no bf16"):
            weft.torch.emulate("v100", "bf16")
        with self.assertRaisesRegex(weft.Error, "no format 'fp32'; known are fp16"):
            weft.torch.emulate("h100", "fp32")
        with self.assertRaises(weft.Error):
            weft.torch.emulate("z80", "bf16")
        with self.assertRaisesRegex(weft.Error, "_trilinear.* holds matrix products"), weft.torch.emulate("h100"):
            nn.Bilinear(2, 2, 2)(torch.ones(1, 2), torch.ones(1, 2))


@needs_torch
class Others(unittest.TestCase):
    """Models as they are found, small."""

    def check(self, model, *inputs, tolerance, output=lambda y: y):
        def run():
            y = output(model(*inputs))
            return [y.detach(), *torch.autograd.grad(y.square().mean(), list(model.parameters()), allow_unused=True)]

        plain = run()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            weft.torch.use(model)
            calls = _calls(lambda: [torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(run(), plain)])
        self.assertFalse({"aten::mm", "aten::addmm", "aten::bmm", "aten::convolution"} & calls.keys())
        weft.torch.use(model, [])
        with weft.torch.emulate("h100", "tf32") as gpu:
            emulated = run()
        for a, b in zip(emulated, plain):
            if b is not None:
                self.assertLess((a - b).norm(), tolerance * b.norm() + 1e-4)
        self.assertTrue({True, False} == {row["backward"] for row in gpu.report()})

    @unittest.skipUnless(torchvision, "Python's torchvision is not installed")
    def test_torchvision(self):
        torch.manual_seed(0)
        from torchvision.models.resnet import Bottleneck, ResNet
        from torchvision.models.vision_transformer import VisionTransformer

        vit = VisionTransformer(image_size=32, patch_size=16, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64)
        nn.init.normal_(vit.heads.head.weight)
        self.check(vit, torch.randn(2, 3, 32, 32), tolerance=0.02)
        self.check(ResNet(Bottleneck, [1, 1, 1, 1], num_classes=10), torch.randn(4, 3, 64, 64), tolerance=0.2)

    @unittest.skipUnless(transformers, "Python's transformers is not installed")
    def test_bert(self):
        torch.manual_seed(0)
        settings = transformers.BertConfig(
            vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
        )
        model = transformers.BertModel(settings).eval()
        tokens, mask = torch.randint(0, 50, (2, 7)), torch.ones(2, 7, dtype=torch.int64)
        mask[1, 4:] = 0
        self.check(model, tokens, mask, tolerance=0.02, output=lambda y: y.last_hidden_state)


if __name__ == "__main__":
    unittest.main()
