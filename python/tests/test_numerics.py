"""Number formats and tensor cores on whole arrays."""

import math
import unittest

import weft
from optional import ml_dtypes, needs_ml_dtypes, needs_numpy
from optional import numpy as np
from weft import numerics


class Formats(unittest.TestCase):
    def test_codes_of_a_format(self):
        e4m3 = numerics.Format("e4m3")
        self.assertEqual((e4m3.bits, e4m3.largest, e4m3.smallest_subnormal), (8, 448.0, 2.0**-9))
        self.assertEqual(repr(numerics.Format("e3m4fn")), 'Format("e3m4fn")')
        codes = weft.arange(256)
        values = numerics.decode(codes, e4m3)
        self.assertEqual(values.dtype, weft.float64)
        finite = [i for i in range(256) if not math.isnan(values[i].item())]
        self.assertEqual(len(finite), 254)
        self.assertEqual(numerics.encode(values, "e4m3")[finite].tolist(), finite)
        with self.assertRaisesRegex(weft.Error, "a code has 8 bits, got 256"):
            numerics.decode(weft.tensor([256]), "e4m3")
        with self.assertRaises(weft.Error):
            numerics.Format("e99m99")

    def test_roundings(self):
        x = weft.tensor([1.0625, 1.1875, -1.1, 1e6], dtype=weft.float64)
        self.assertEqual(numerics.round(x, "e4m3")[:3].tolist(), [1.0, 1.25, -1.125])
        self.assertTrue(math.isnan(numerics.round(x, "e4m3")[3].item()))
        self.assertEqual(numerics.round(x, "e4m3", saturate=True)[3].item(), 448)
        self.assertEqual(numerics.round(x, "e4m3", "toward_zero").tolist(), [1.0, 1.125, -1.0, 448.0])
        self.assertEqual(numerics.round(x, "e4m3", "nearest_away")[0].item(), 1.125)
        many = weft.full((4096,), 1.03125, dtype=weft.float64)
        drawn = numerics.round(many, "e4m3", "stochastic", seed=3)
        self.assertEqual(set(drawn.tolist()), {1.0, 1.125})
        self.assertAlmostEqual(drawn.mean().item(), 1.03125, delta=0.004)
        self.assertEqual(drawn.tolist(), numerics.round(many, "e4m3", "stochastic", seed=3).tolist())
        with self.assertRaisesRegex(weft.Error, "rounding is nearest_even"):
            numerics.round(x, "e4m3", "up")

    @needs_ml_dtypes
    def test_as_ml_dtypes(self):
        x = np.random.default_rng(0).standard_normal(2000) * 10
        for name, dtype in (("bf16", ml_dtypes.bfloat16), ("e4m3", ml_dtypes.float8_e4m3fn), ("e5m2", ml_dtypes.float8_e5m2)):
            rounded = numerics.round(x, name)
            self.assertIsInstance(rounded, np.ndarray)
            self.assertEqual(rounded.tolist(), x.astype(dtype).astype(np.float64).tolist())


class TensorCores(unittest.TestCase):
    def test_matrices_are_dot_products(self):
        weft.manual_seed(1)
        a, b = weft.randn(5, 40), weft.randn(40, 7)
        for gpu in numerics.gpus():
            for format in ("fp16", "bf16", "e4m3"):
                if not numerics.takes(gpu, format):
                    with self.assertRaises(weft.Error):
                        numerics.gemm(gpu, a, b, format=format)
                    continue
                product = numerics.gemm(gpu, a, b, format=format)
                column = numerics.dot(gpu, a, b.T[3].expand(5, 40), format=format)
                self.assertEqual(product[:, 3].tolist(), column.tolist())

    def test_truncation_and_the_scope(self):
        # 2^24 + 1 does not fit into f32; the tensor core cuts, the CPU rounds to even.
        a = weft.tensor([[4096.0, 1.0, 1.0]])
        b = weft.tensor([[4096.0], [1.0], [1.0]])
        exact = (a.double() @ b.double()).item()
        h100 = numerics.gemm("h100", a, b, format="bf16").item()
        self.assertLessEqual(h100, exact)
        weft.manual_seed(2)
        x, w = weft.randn(8, 64).bfloat16(), weft.randn(64, 8).bfloat16()
        with numerics.matmul("h100"):
            inside = (x @ w).float()
        self.assertEqual(inside.tolist(), numerics.gemm("h100", x, w).bfloat16().float().tolist())
        batch = numerics.gemm("h100", weft.randn(3, 1, 4, 8), weft.randn(2, 8, 5), c=weft.ones(5))
        self.assertEqual(batch.shape, (3, 2, 4, 5))
        with self.assertRaisesRegex(weft.Error, "h1000"):
            numerics.matmul("h1000").__enter__()
        with self.assertRaisesRegex(weft.Error, "expected .* got"):
            numerics.gemm("h100", weft.ones(2, 3), weft.ones(2, 3))
        with self.assertRaisesRegex(weft.Error, "promotion after a multiple of"):
            numerics.gemm("h100", x, w, promotion_interval=7)

    @needs_numpy
    def test_arrays_in_arrays_out(self):
        a = np.ones((2, 3), np.float32)
        product = numerics.gemm("h100", a, a.T, format="e4m3", promotion_interval=32)
        self.assertIsInstance(product, np.ndarray)
        self.assertEqual(product.tolist(), [[3.0, 3.0], [3.0, 3.0]])


if __name__ == "__main__":
    unittest.main()
