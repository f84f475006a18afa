"""Memory shared with others: DLPack, the buffer protocol, NumPy; lifetimes, read-only memory, refusals."""

import ctypes
import gc
import unittest
import weakref

import weft
from optional import ml_dtypes, needs_ml_dtypes, needs_numpy
from optional import numpy as np
from weft.nn import functional as F

SHARED = (weft.float64, weft.float32, weft.float16, weft.int64, weft.int32, weft.uint8, weft.bool)
NARROW = (weft.bfloat16, weft.float8_e4m3fn, weft.float8_e5m2)


class Old:
    """A producer of before DLPack's version 1."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, stream=None):
        return self.tensor.__dlpack__(stream=stream)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


class New(Old):
    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        return self.tensor.__dlpack__(
            stream=stream, max_version=max_version, dl_device=dl_device, copy=copy
        )


def capsule_name(capsule):
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    return name(capsule).decode()


class DLPack(unittest.TestCase):
    def test_both_versions_share_memory_in_every_dtype(self):
        for dtype in SHARED + NARROW:
            for producer in (Old, New):
                x = weft.zeros(3, 4, dtype=dtype)
                y = weft.from_dlpack(producer(x.T[1:]))
                self.assertEqual((y.dtype, y.shape, y.stride()), (dtype, (3, 3), (1, 4)))
                self.assertEqual(y.data_ptr(), x.data_ptr() + dtype.itemsize)
                y[0, 0] = 1
                self.assertEqual(x[0, 1].item(), 1)
                self.assertEqual(y[0, 1].item(), 0)

    def test_empty_and_scalar(self):
        for shape in ((), (0,), (2, 0, 3)):
            y = weft.from_dlpack(New(weft.ones(shape)))
            self.assertEqual(y.shape, shape)

    def test_names_and_versions_of_capsules(self):
        x = weft.ones(2)
        self.assertEqual(capsule_name(x.__dlpack__()), "dltensor")
        self.assertEqual(capsule_name(x.__dlpack__(max_version=(0, 8))), "dltensor")
        capsule = x.__dlpack__(max_version=(1, 0))
        self.assertEqual(capsule_name(capsule), "dltensor_versioned")
        self.assertEqual(weft.from_dlpack(capsule).tolist(), [1.0, 1.0])
        self.assertEqual(capsule_name(capsule), "used_dltensor_versioned")
        with self.assertRaisesRegex(BufferError, "used before"):
            weft.from_dlpack(capsule)
        self.assertEqual(x.__dlpack_device__(), (1, 0))

    def test_copies_on_request(self):
        x = weft.ones(2)
        y = weft.from_dlpack(x, copy=True)
        y[0] = 5
        self.assertEqual(x.tolist(), [1.0, 1.0])
        z = weft.from_dlpack(x.__dlpack__(copy=True, max_version=(1, 0)))
        self.assertNotEqual(z.data_ptr(), x.data_ptr())
        self.assertEqual(weft.from_dlpack(x, copy=False).data_ptr(), x.data_ptr())
        with self.assertRaisesRegex(BufferError, "without a copy"):
            weft.from_dlpack(x, device="cpu:1", copy=False)
        self.assertEqual(str(weft.from_dlpack(x, device="cpu:1").device), "cpu:1")

    def test_refusals(self):
        with self.assertRaisesRegex(BufferError, "requires a gradient"):
            weft.tensor([1.0], requires_grad=True).__dlpack__()
        with self.assertRaisesRegex(BufferError, "only Weft has this dtype"):
            weft.zeros(2, dtype=weft.tf32).__dlpack__()
        with self.assertRaisesRegex(BufferError, "a CPU has no streams"):
            weft.zeros(2).__dlpack__(stream=1)
        with self.assertRaisesRegex(TypeError, "has no __dlpack__"):
            weft.from_dlpack([1, 2])

    def test_the_memory_lives_as_long_as_its_users(self):
        class Owner(New):
            pass

        owner = Owner(weft.full((1000,), 3.0))
        gone = weakref.ref(owner)
        y = weft.from_dlpack(owner)
        part = y[500:]
        del owner, y
        gc.collect()
        self.assertIsNone(gone())
        self.assertEqual(part.sum().item(), 1500)
        # A capsule that nobody uses frees what it holds.
        for _ in range(1000):
            weft.zeros(100_000).__dlpack__(max_version=(1, 0))


@needs_numpy
class SharedMemory(unittest.TestCase):
    def test_a_tensor_of_our_own_stays_on_its_storage(self):
        x = weft.ones(3)
        w = weft.ones(3, requires_grad=True)
        z = weft.from_dlpack(x)
        y = (w * x).sum()
        z.zero_()
        with self.assertRaisesRegex(weft.Error, "changed in place"):
            y.backward()

    @needs_numpy
    def test_parts_of_one_array_are_not_added_to_each_other(self):
        a = np.ones(5000, np.float32)
        with self.assertRaisesRegex(weft.Error, "share some of their elements"):
            weft.from_numpy(a[1:]).add_(weft.from_numpy(a[:-1]))
        self.assertEqual(weft.from_numpy(a).add_(weft.from_numpy(a)).tolist(), [2] * 5000)


class NumPy(unittest.TestCase):
    def test_shares_memory_in_both_directions(self):
        for dtype in SHARED:
            x = weft.zeros(3, 4, dtype=dtype)
            for array in (x.numpy(), np.asarray(x), np.from_dlpack(x)):
                self.assertEqual(array.__array_interface__["data"][0], x.data_ptr())
                self.assertEqual(array.dtype.name, dtype.name)
            array = x.T.numpy()
            array[1, 2] = 1
            self.assertEqual(x[2, 1].item(), 1)
            for back in (weft.from_numpy(array), weft.as_tensor(array), weft.from_dlpack(array)):
                self.assertEqual((back.data_ptr(), back.dtype), (x.data_ptr(), dtype))
                self.assertEqual(back.stride(), (1, 4))

    @needs_ml_dtypes
    def test_dtypes_of_ml_dtypes(self):
        for dtype in NARROW:
            x = weft.tensor([[0.5, 1.0, -2.0], [0.0, 4.0, 1.0]], dtype=dtype)
            array = x.T.numpy()
            self.assertEqual(array.dtype, getattr(ml_dtypes, dtype.name))
            self.assertEqual(array.astype(np.float32).tolist(), x.T.tolist())
            array[0, 0] = 1.5
            self.assertEqual(x[0, 0].item(), 1.5)
            back = weft.from_numpy(array[::2])
            self.assertEqual((back.dtype, back.stride(), back.data_ptr()), (dtype, (2, 3), x.data_ptr()))
            self.assertEqual(np.asarray(x).dtype, array.dtype)

    def test_negative_strides(self):
        array = np.arange(6.0).reshape(2, 3)[::-1, ::-1]
        x = weft.from_numpy(array)
        self.assertEqual(x.tolist(), array.tolist())
        self.assertEqual((x + 1).tolist(), (array + 1).tolist())
        self.assertEqual(x.sum(0).tolist(), array.sum(0).tolist())
        self.assertEqual(np.asarray(x).strides, array.strides)

    def test_read_only_memory_stays_so(self):
        array = np.arange(3.0)
        array.flags.writeable = False
        for x in (weft.from_numpy(array), weft.as_tensor(array), weft.as_tensor(b"abc")):
            self.assertTrue(x.is_read_only and x[1:].is_read_only)
            for write in (lambda: x.zero_(), lambda: x.__setitem__(0, 1), lambda: x.add_(1),
                          lambda: x[1:].copy_(x[1:]), lambda: x.sqrt_()):
                with self.assertRaisesRegex(weft.Error, "read-only memory"):
                    write()
            self.assertFalse(np.asarray(x).flags.writeable)
            with self.assertRaisesRegex(BufferError, "read-only"):
                x.__dlpack__()
            self.assertFalse(np.from_dlpack(x).flags.writeable)
            self.assertTrue(weft.from_dlpack(New(x)).is_read_only)
            self.assertFalse(x.clone().is_read_only)
        self.assertEqual(array.tolist(), [0.0, 1.0, 2.0])
        memory = weft.as_tensor(memoryview(bytes(8)).cast("f"))
        w = weft.ones(2, requires_grad=True)
        for write in (lambda: weft.nn.init.zeros_(memory), lambda: weft.nn.init.uniform_(memory, 0, 1),
                      lambda: setattr(w, "grad", memory)):
            with self.assertRaisesRegex(weft.Error, "read-only memory"):
                write()

    def test_the_owner_may_die_first(self):
        x = weft.from_numpy(np.full(100_000, 2.0))
        array = weft.full((100_000,), 3.0).numpy()
        gc.collect()
        self.assertEqual(x.sum().item(), 200_000)
        self.assertEqual(array.sum(), 300_000)
        memory = memoryview(weft.ones(5))
        gc.collect()
        self.assertEqual(memory.tolist(), [1.0] * 5)

    def test_array_protocol(self):
        x = weft.tensor([1.5, 2.5])
        self.assertEqual(np.asarray(x, dtype=np.int64).tolist(), [1, 2])
        self.assertEqual(np.add(np.ones(2), x.numpy()).tolist(), [2.5, 3.5])
        self.assertEqual(np.concatenate([x, x]).tolist(), [1.5, 2.5] * 2)
        self.assertEqual(weft.tensor(np.float32(1.5)).item(), 1.5)
        self.assertEqual((x + np.float64(1)).dtype, weft.float32)

    def test_refusals(self):
        with self.assertRaisesRegex(BufferError, "requires a gradient"):
            weft.tensor([1.0], requires_grad=True).numpy()
        for array in (np.zeros(2, np.int16), np.zeros(2, np.complex64), np.zeros(2, ">f4"),
                      np.array(["a"]), np.array([object()])):
            with self.assertRaises((TypeError, BufferError, ValueError), msg=str(array.dtype)):
                weft.from_numpy(array)
        with self.assertRaisesRegex(BufferError, "at most 8 dimensions"):
            weft.from_numpy(np.zeros((1,) * 9))
        misaligned = np.frombuffer(bytearray(9), np.uint8)[1:].view(np.float32)
        with self.assertRaisesRegex(BufferError, "not aligned"):
            weft.from_numpy(misaligned)
        fields = np.zeros(3, [("a", "u1"), ("b", "f4")])["b"]
        with self.assertRaises(BufferError):
            weft.from_numpy(fields)


class Buffers(unittest.TestCase):
    def test_memoryviews(self):
        x = weft.tensor([[1, 2], [3, 4]], dtype=weft.int32)
        memory = memoryview(x)
        self.assertEqual((memory.format, memory.shape, memory.tolist()), ("i", (2, 2), [[1, 2], [3, 4]]))
        memory[0, 1] = 9
        self.assertEqual(x[0, 1].item(), 9)
        self.assertEqual(bytes(weft.tensor([1, 2], dtype=weft.uint8)), b"\x01\x02")
        self.assertEqual(weft.as_tensor(bytearray(b"ab")).tolist(), [97, 98])
        self.assertRaises(BufferError, memoryview, weft.zeros(2, dtype=weft.bfloat16))

    def test_what_others_write_to_a_weight_reaches_its_products(self):
        # An optimizer keeps 16-bit copies of weights, but of those that others may change.
        for shares_first in (False, True):
            weight = weft.ones(1, 2, requires_grad=True)
            memory = memoryview(weight.detach()) if shares_first else None
            optimizer = weft.optim.SGD([weight], lr=0.5)

            def product():
                with weft.autocast(weft.bfloat16):
                    return F.linear(weft.ones(1, 2), weight)

            for _ in range(2):
                product().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            self.assertEqual(product().item(), 0)
            memory = memory or memoryview(weight.detach())
            memory[0, 0] = 3
            self.assertEqual(product().item(), 3)


if __name__ == "__main__":
    unittest.main()
