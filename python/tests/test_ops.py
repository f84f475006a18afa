"""Every operation of autograd/ops.h is there under PyTorch's name, and some against NumPy."""

import re
import unittest

import weft
from optional import needs_numpy
from optional import numpy as np
from weft.nn import functional as F

# PyTorch's names of those that have others in C++.
NAMES = {
    "attention": "scaled_dot_product_attention",
    "cast": "to",
    "index": "__getitem__",
    "index_put": "__setitem__",
    "is_nan": "isnan",
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


if __name__ == "__main__":
    unittest.main()
