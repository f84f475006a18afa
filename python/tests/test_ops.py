"""Every operation of autograd/ops.h is there under PyTorch's name, and some against NumPy."""

import math
import re
import unittest

import weft
from optional import needs_numpy, needs_torch, torch
from optional import numpy as np
from weft.nn import functional as F

# PyTorch's names of those that have others in C++.
NAMES = {
    "attention": "scaled_dot_product_attention",
    "cast": "to",
    "index": "__getitem__",
    "index_put": "__setitem__",
    "is_nan": "isnan",
    "max_pool2d_with_indices": "max_pool2d",
    "slice": "__getitem__",
    "sum_to": "sum_to_size",
}


class Ops(unittest.TestCase):
    def test_all_are_there(self):
        with open("autograd/ops.h") as file:
            text = file.read()
        text = text[text.index("namespace ops {"): text.index("}  // namespace ops")]
        declared = set(re.findall(r"^(?:Tensor&?|Tensors|std::pair<Tensor, Tensor>) (\w+)\(", text, re.M))
        self.assertGreater(len(declared), 80)
        missing = [
            name for name in sorted(declared)
            if not any(hasattr(place, NAMES.get(name, name)) for place in (weft, weft.Tensor, F))
        ]
        self.assertEqual(missing, [])

    @needs_numpy
    def test_as_numpy(self):
        a = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
        x = weft.tensor(a)
        positive = np.abs(a) + 0.5
        for name in ("exp2", "expm1", "tan", "arctan", "sinh", "cosh", "arcsinh", "trunc", "log1p", "log2", "log10"):
            ours = getattr(weft, name.replace("arc", "a"))(weft.tensor(positive))
            self.assertTrue(np.allclose(ours.numpy(), getattr(np, name)(positive), rtol=1e-5), name)
        self.assertEqual(x.flip((0, 1)).tolist(), a[::-1, ::-1].tolist())
        self.assertEqual(x.roll(1, 0).tolist(), np.roll(a, 1, 0).tolist())
        self.assertEqual(x.tril().tolist(), np.tril(a).tolist())
        self.assertEqual(x.repeat(2, 1).shape, (6, 4))
        self.assertEqual(x.sort(1)[0].tolist(), np.sort(a, 1).tolist())
        self.assertEqual(x.argsort(0).tolist(), np.argsort(a, 0, kind="stable").tolist())
        self.assertEqual(x.topk(2, 1)[0].tolist(), np.sort(a, 1)[:, :-3:-1].tolist())
        self.assertEqual(weft.tensor([3, 1, 3]).unique().tolist(), [1, 3])
        values, counts = weft.unique(weft.tensor([3, 1, 3]), return_counts=True)
        self.assertEqual((values.tolist(), counts.tolist()), ([1, 3], [1, 2]))
        self.assertEqual((x > 0).nonzero().tolist(), np.argwhere(a > 0).tolist())
        self.assertTrue(np.allclose(x.cumsum(1).numpy(), a.cumsum(1), atol=1e-5))
        self.assertTrue(np.allclose(weft.einsum("ij,kj->ik", x, x).numpy(), a @ a.T, atol=1e-5))
        self.assertAlmostEqual(x.std().item(), a.std(ddof=1), places=5)
        self.assertAlmostEqual(x.norm().item(), np.linalg.norm(a), places=5)
        self.assertEqual((x > 9).any().item(), False)
        self.assertEqual(F.pad(x, (1, 0)).shape, (3, 5))
        self.assertEqual([g.shape for g in weft.meshgrid([weft.arange(2), weft.arange(3)])], [(2, 3), (2, 3)])
        self.assertEqual(weft.linspace(0, 1, 3).tolist(), [0.0, 0.5, 1.0])
        self.assertEqual((weft.tensor([7, -7]) // 2).tolist(), [3, -4])
        self.assertEqual((weft.tensor([7, -7]) % 4).tolist(), [3, 1])

    def test_arguments_as_in_pytorch(self):
        x, y = weft.arange(2), weft.arange(3)
        for grids in (weft.meshgrid(x, y), weft.meshgrid([x, y]), weft.meshgrid(y, x, indexing="xy")):
            self.assertEqual(len(grids), 2)
            self.assertEqual(grids[0].shape, grids[1].shape)
        self.assertEqual([g.tolist() for g in weft.meshgrid(y)], [[0, 1, 2]])
        # A value that is a tensor has a gradient.
        z, value = weft.ones(3, requires_grad=True), weft.tensor(5.0, requires_grad=True)
        weft.masked_fill(z, weft.tensor([True, False, True]), value).sum().backward()
        self.assertEqual((z.grad.tolist(), value.grad.item()), ([0, 1, 0], 2))
        with self.assertRaisesRegex(weft.Error, "a number or a tensor without dimensions, got f32 .3."):
            z.masked_fill(weft.tensor(True), weft.ones(3))
        self.assertEqual(weft.tensor([3, 4], dtype=weft.int32).prod(dtype=weft.int32).dtype, weft.int32)
        self.assertEqual(weft.tensor([3, 4], dtype=weft.int32).sum().dtype, weft.int64)
        with self.assertRaisesRegex(weft.Error, "the opposite is ~x"):
            -weft.tensor([True])

    def test_options_as_in_pytorch(self):
        rows = weft.tensor([[2, 1], [0, 7], [2, 1]])
        values, inverse, counts = rows.unique(sorted=False, return_inverse=True, return_counts=True, dim=0)
        self.assertEqual((values.tolist(), inverse.tolist(), counts.tolist()), ([[0, 7], [2, 1]], [1, 0, 1], [1, 2]))
        self.assertEqual(rows.unique(dim=-1).tolist(), [[1, 2], [7, 0], [1, 2]])
        self.assertEqual(rows.unique().tolist(), [0, 1, 2, 7])

        image = weft.arange(25).reshape(1, 1, 5, 5).float()
        values, places = F.max_pool2d(image, 2, 2, ceil_mode=True, return_indices=True)
        self.assertEqual(places.flatten().tolist(), [6, 8, 9, 16, 18, 19, 21, 23, 24])
        self.assertEqual(values.flatten().tolist(), places.flatten().tolist())
        self.assertEqual(F.max_pool2d(image[0], 2, 1, 1, dilation=2).shape, (1, 5, 5))
        self.assertEqual(weft.nn.MaxPool2d(2, dilation=3, ceil_mode=True)(image).shape, (1, 1, 2, 2))
        self.assertEqual(weft.nn.AvgPool2d(2, ceil_mode=True)(image)[0, 0, 2, 2].item(), 24)
        with self.assertRaisesRegex(weft.Error, "max_pool2d: .* padding of at most half the kernel"):
            F.max_pool2d(image, 2, padding=2)

    def test_classes_of_weight(self):
        logits, labels = weft.tensor([[2.0, 0.0], [0.0, 0.0], [1.0, 1.0]]), weft.tensor([0, 1, -100])
        each = F.cross_entropy(logits, labels, reduction="none").tolist()
        self.assertEqual(each[2], 0)
        self.assertAlmostEqual(each[1], math.log(2), places=6)
        self.assertAlmostEqual(F.cross_entropy(logits, labels, reduction="sum").item(), sum(each), places=6)
        weighted = F.cross_entropy(logits, labels, weft.tensor([1.0, 3.0]))
        self.assertAlmostEqual(weighted.item(), (each[0] + 3 * each[1]) / 4, places=6)
        with self.assertRaisesRegex(weft.Error, "cross_entropy: a weight and reductions other than mean"):
            F.cross_entropy(logits, labels, reduction="sum", label_smoothing=0.1)

    def test_a_number_with_a_gradient_is_refused(self):
        x, number = weft.ones(2), weft.tensor(0.5, requires_grad=True)
        for name, call in (("leaky_relu", lambda: F.leaky_relu(x, number)), ("add", lambda: x.add(x, alpha=number)),
                           ("arange", lambda: weft.arange(number)),
                           ("clip_grad_value_", lambda: weft.nn.utils.clip_grad_value_([x], number))):
            with self.assertRaisesRegex((TypeError, weft.Error), name):
                call()
        self.assertEqual(F.leaky_relu(-x, number.detach()).tolist(), [-0.5, -0.5])
        self.assertEqual(float(number), 0.5)

    def test_places_limits_and_identities(self):
        rows, columns = weft.tensor([[0, 2], [3, 0]]).nonzero(as_tuple=True)
        self.assertEqual((rows.tolist(), columns.tolist()), ([0, 1], [1, 0]))
        self.assertEqual(weft.nonzero(weft.tensor(3), as_tuple=True)[0].tolist(), [0])
        x = weft.tensor([1.0, 5.0, 9.0])
        self.assertEqual(x.clamp(weft.tensor([2.0, 2.0, 2.0]), weft.tensor([8.0, 8.0, 8.0])).tolist(), [2, 5, 8])
        self.assertEqual(x.clamp(max=weft.tensor(4.0)).tolist(), [1, 4, 4])
        self.assertEqual(x.clamp(min=weft.tensor([2.0, 2.0, 2.0]), max=7).tolist(), [2, 5, 7])
        bound = weft.tensor(2.0, requires_grad=True)
        y = x.clamp(min=bound, max=2.5)
        self.assertEqual(y.tolist(), [2, 2.5, 2.5])
        y.sum().backward()
        self.assertEqual(bound.grad.item(), 1)
        low = weft.tensor([1.0, 6.0, float("nan")])
        x.requires_grad = low.requires_grad = True
        y = x.clamp(low, weft.tensor(6.0))
        self.assertEqual(y.tolist()[:2], [1, 6])
        self.assertTrue(math.isnan(y.tolist()[2]))
        y.sum().backward()
        self.assertEqual((x.grad.tolist(), low.grad.tolist()), ([1, 0, 0], [0, 1, 1]))
        self.assertEqual(weft.eye(2, 3).tolist(), [[1, 0, 0], [0, 1, 0]])

    def test_heads_that_share_keys(self):
        q, k = weft.randn(2, 4, 3, 8), weft.randn(2, 2, 3, 8)
        with self.assertRaisesRegex(weft.Error, "differ in heads; enable_gqa=True"):
            F.scaled_dot_product_attention(q, k, k)
        out = F.scaled_dot_product_attention(q, k, k, enable_gqa=True)
        alone = F.scaled_dot_product_attention(q[:, 2:3], k[:, 1:2], k[:, 1:2])
        self.assertEqual(out[:, 2:3].tolist(), alone.tolist())
        flat = F.scaled_dot_product_attention(q[0], q[0], q[0], is_causal=True)
        self.assertEqual(flat.tolist(), F.scaled_dot_product_attention(q[:1], q[:1], q[:1], is_causal=True)[0].tolist())

    @needs_torch
    @needs_numpy
    def test_causal_attention_to_more_or_fewer_keys_is_pytorchs(self):
        theirs = torch.nn.functional.scaled_dot_product_attention
        torch.manual_seed(5)
        for queries, keys in ((3, 5), (5, 3), (70, 130), (130, 70)):
            for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 2e-5)):
                with self.subTest(queries=queries, keys=keys, dtype=dtype):
                    whole = [torch.randn(2, 3, n, 16, dtype=dtype) for n in (queries, keys, keys)]
                    ours = [weft.from_numpy(x.numpy().copy()).requires_grad_() for x in whole]
                    out = F.scaled_dot_product_attention(*ours, is_causal=True)
                    expected = theirs(*[x.requires_grad_() for x in whole], is_causal=True)
                    gradient = torch.randn(expected.shape, dtype=dtype)
                    out.backward(weft.from_numpy(gradient.numpy()))
                    expected.backward(gradient)
                    for got, want in zip([out, *(x.grad for x in ours)], [expected, *(x.grad for x in whole)]):
                        difference = np.abs(got.detach().numpy() - want.detach().numpy()).max()
                        self.assertLess(difference, tolerance)

    def test_a_mask_that_is_added(self):
        inf = float("inf")
        q = weft.tensor([[[[1.0, 0.0], [0.0, 1.0]]]], requires_grad=True)
        mask = weft.tensor([[0.0, -inf], [-inf, -inf]])
        out = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
        self.assertEqual(out.tolist(), [[[[1, 0], [0, 0]]]])
        shown = F.scaled_dot_product_attention(q, q, q, attn_mask=mask == 0)
        self.assertEqual(out.tolist(), shown.tolist())
        out.sum().backward()
        self.assertEqual(q.grad.tolist(), [[[[1, 1], [0, 0]]]])
        bias = weft.zeros(2, 2, requires_grad=True)
        (F.scaled_dot_product_attention(q.detach(), q.detach(), q.detach(), attn_mask=bias)[0, 0, 0, 0]).backward()
        self.assertAlmostEqual(bias.grad[0].sum().item(), 0, places=6)
        self.assertGreater(bias.grad[0, 0].item(), 0.2)
        with self.assertRaisesRegex(weft.Error, "a bool or floating mask that broadcasts to .1, 1, 2, 2., got i64"):
            F.scaled_dot_product_attention(q, q, q, attn_mask=weft.zeros(2, 2, dtype="i64"))


if __name__ == "__main__":
    unittest.main()
