#!/usr/bin/env python3
"""JAX's half of `weft compare`, every function compiled by jax.jit. peer_protocol.py says how it is
asked. The models are those of compare_peer.py, with its layers' names."""

import os
import platform

import jax
import jax.numpy as jnp
import numpy
from jax import lax
from peer_protocol import Peer, serve

DTYPES = {"fp32": jnp.float32, "bf16": jnp.bfloat16}


def make_parameters(a):
    """Arrays by name; their number is what PyTorch's model has."""
    width, hidden, shapes = a["width"], a["hidden"], {}
    if "stages" in a:
        channels, side = a["channels"], a["image_size"]
        for i, out in enumerate(a["stages"]):
            shapes[f"stem.{i}"] = (out, channels, 3, 3)
            channels, side = out, (side - 1) // 2 + 1
        tokens = side * side
        shapes |= {"pool.weight": (1, width), "pool.bias": (1,)}
    else:
        tokens = (a["image_size"] // a["patch"]) ** 2 + 1
        shapes["conv.weight"] = (width, a["channels"], a["patch"], a["patch"])
        shapes |= {"conv.bias": (width,), "class_token": (1, 1, width)}
    shapes["position"] = (1, tokens, width)
    for i in range(a["layers"]):
        for name, n, k in [
            ("qkv", 3 * width, width),
            ("out", width, width),
            ("fc1", hidden, width),
            ("fc2", width, hidden),
        ]:
            shapes |= {f"{i}.{name}.weight": (n, k), f"{i}.{name}.bias": (n,)}
        for name in ("ln_1", "ln_2"):
            shapes |= {f"{i}.{name}.weight": (width,), f"{i}.{name}.bias": (width,)}
    shapes |= {"ln.weight": (width,), "ln.bias": (width,)}
    shapes |= {"head.weight": (a["classes"], width), "head.bias": (a["classes"],)}
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return {n: 0.02 * jax.random.normal(k, s) for k, (n, s) in zip(keys, shapes.items())}


def layer_norm(x, weight, bias):
    x = x.astype(jnp.float32)
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-6) * weight + bias


def logits_of(a, p, images, dtype):
    """Products in `dtype`, normalisations in f32, as autocast has them."""
    numbers = ("NCHW", "OIHW", "NCHW")

    def linear(x, name):
        weight, bias = p[name + ".weight"].astype(dtype), p[name + ".bias"].astype(dtype)
        return x.astype(dtype) @ weight.T + bias

    def norm(x, name):
        return layer_norm(x, p[name + ".weight"], p[name + ".bias"])

    x = images.astype(dtype)
    if "stages" in a:
        for i in range(len(a["stages"])):
            x = lax.conv_general_dilated(
                x, p[f"stem.{i}"].astype(dtype), (1, 1), "SAME", dimension_numbers=numbers
            )
            padding = ((0, 0), (0, 0), (1, 1), (1, 1))
            lowest = numpy.array(-numpy.inf, x.dtype)
            x = lax.reduce_window(x, lowest, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), padding)
            x = jax.nn.relu(x)
        x = x.reshape(*x.shape[:2], -1).swapaxes(1, 2)
    else:
        patch = (a["patch"], a["patch"])
        weight = p["conv.weight"].astype(dtype)
        x = lax.conv_general_dilated(x, weight, patch, "VALID", dimension_numbers=numbers)
        x = (x + p["conv.bias"].astype(dtype)[:, None, None]).reshape(*x.shape[:2], -1)
        token = jnp.broadcast_to(p["class_token"], (x.shape[0], 1, a["width"]))
        x = jnp.concatenate([token, x.swapaxes(1, 2)], 1)
    x = x + p["position"]
    batch, tokens, width = x.shape
    for i in range(a["layers"]):
        qkv = linear(norm(x, f"{i}.ln_1"), f"{i}.qkv")
        q, k, v = jnp.moveaxis(qkv.reshape(batch, tokens, 3, a["heads"], -1), 2, 0)
        y = jax.nn.dot_product_attention(q, k, v).reshape(batch, tokens, width)
        x = x + linear(y, f"{i}.out")
        y = jax.nn.gelu(linear(norm(x, f"{i}.ln_2"), f"{i}.fc1"), approximate=False)
        x = x + linear(y, f"{i}.fc2")
    x = norm(x, "ln")
    if "stages" not in a:
        return linear(x[:, 0], "head")
    weights = jax.nn.softmax(linear(x, "pool").astype(jnp.float32), 1)
    return linear((weights.swapaxes(1, 2).astype(dtype) @ x.astype(dtype))[:, 0], "head")


def cross_entropy(logits, labels):
    logits = logits.astype(jnp.float32)
    picked = jnp.take_along_axis(logits, labels[:, None], 1)[:, 0]
    return (jax.nn.logsumexp(logits, 1) - picked).mean()


def adamw(p, g, m, v, step, lr=1e-4, beta1=0.9, beta2=0.999, eps=1e-8, decay=1e-2):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    scale = lr / (1 - beta1**step)
    return p * (1 - lr * decay) - scale * m / (jnp.sqrt(v / (1 - beta2**step)) + eps), m, v


class Jax(Peer):
    def randn(self, *shape, dtype=jnp.float32):
        self.key, key = jax.random.split(self.key)
        return jax.random.normal(key, shape).astype(dtype)

    def make(self, work, side):
        self.key = jax.random.key(0)
        return super().make(work, side)

    def images(self, work):
        a = work["architecture"]
        return self.randn(work["batch"], a["channels"], a["image_size"], a["image_size"])

    def train(self, work, side):
        a, dtype = work["architecture"], DTYPES[work["precision"]]
        images, labels = self.images(work), jnp.arange(work["batch"]) % a["classes"]

        def loss_of(p):
            return cross_entropy(logits_of(a, p, images, dtype), labels)

        def step(state):
            count = state["count"] + 1
            gradients = jax.grad(loss_of)(state["p"])
            new = {
                n: adamw(state["p"][n], g, state["m"][n], state["v"][n], count)
                for n, g in gradients.items()
            }
            p, m, v = ({n: entry[i] for n, entry in new.items()} for i in range(3))
            return {"p": p, "m": m, "v": v, "count": count}

        parameters = make_parameters(a)
        count = sum(p.size for p in parameters.values())
        zeros = [{n: jnp.zeros_like(x) for n, x in parameters.items()} for _ in range(2)]
        self.state = {"p": parameters, "m": zeros[0], "v": zeros[1], "count": jnp.float32(0)}
        compiled = jax.jit(step, donate_argnums=0)

        def run():
            self.state = compiled(self.state)
            jax.block_until_ready(self.state)

        return run, {"parameters": count}

    def infer(self, work, side):
        a, dtype = work["architecture"], DTYPES[work["precision"]]
        parameters, images = make_parameters(a), self.images(work)
        compiled = jax.jit(lambda p, images: logits_of(a, p, images, dtype))
        run = lambda: compiled(parameters, images).block_until_ready()
        return run, {"parameters": sum(p.size for p in parameters.values())}

    def op(self, work, function, inputs):
        """function(*inputs) alone, or with the gradients of all inputs."""
        forward = jax.jit(function)
        if not work["backward"]:
            return lambda: forward(*inputs).block_until_ready(), {}
        dy = self.randn(*forward(*inputs).shape, dtype=forward(*inputs).dtype)

        def both(dy, *inputs):
            y, gradients = jax.vjp(function, *inputs)
            return y, gradients(dy)

        compiled = jax.jit(both)
        return lambda: jax.block_until_ready(compiled(dy, *inputs)), {}

    def shaped(self, work, function, count=1):
        dtype = DTYPES[work["precision"]]
        return self.op(work, function, [self.randn(*work["shape"], dtype=dtype) for _ in range(count)])

    def gemm(self, work, side):
        dtype = DTYPES[work["precision"]]
        x = self.randn(work["m"], work["k"], dtype=dtype)
        weight = self.randn(work["n"], work["k"], dtype=dtype)
        return self.op(work, lambda x, weight: x @ weight.T, [x, weight])

    def softmax(self, work, side):
        return self.shaped(work, lambda x: jax.nn.softmax(x, -1))

    def layer_norm(self, work, side):
        dtype, width = DTYPES[work["precision"]], work["shape"][-1]
        x = self.randn(*work["shape"], dtype=dtype)
        weight, bias = self.randn(width, dtype=dtype), self.randn(width, dtype=dtype)
        function = lambda x, weight, bias: layer_norm(x, weight, bias).astype(dtype)
        return self.op(work, function, [x, weight, bias])

    def gelu(self, work, side):
        return self.shaped(work, lambda x: jax.nn.gelu(x, approximate=False))

    def chain(self, work, side):
        return self.shaped(work, lambda x, y, z: jax.nn.sigmoid(x * y + z) * x - y, 3)

    def attention(self, work, side):
        dtype = DTYPES[work["precision"]]
        shape = [work["batch"], work["tokens"], work["heads"], work["depth"]]
        qkv = [self.randn(*shape, dtype=dtype) for _ in range(3)]
        return self.op(work, jax.nn.dot_product_attention, qkv)

    def cross_entropy(self, work, side):
        labels = jnp.arange(work["shape"][0]) % work["shape"][1]
        return self.shaped(work, lambda logits: cross_entropy(logits, labels))

    def sum(self, work, side):
        return self.shaped(work, lambda x: x.sum(tuple(work["dims"]) or None))

    def cast(self, work, side):
        x = self.randn(*work["shape"], dtype=DTYPES[work["from"]])
        return self.op(work, lambda x: x.astype(DTYPES[work["to"]]), [x])

    def hello(self, request):
        one = jnp.ones(1)
        assert (one + one).item() == 2
        return {
            "program": "JAX",
            "version": jax.__version__,
            "python": platform.python_version(),
            "threads": len(os.sched_getaffinity(0)),
            "device": str(jax.devices()[0]),
        }

    def drop(self, request):
        self.state = None
        jax.clear_caches()
        return super().drop(request)


if __name__ == "__main__":
    serve(Jax)
