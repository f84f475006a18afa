#!/usr/bin/env python3
"""PyTorch's half of `weft compare`: does the work that it is told to, and says how long it took.
peer_protocol.py says how it is asked."""

import io
import os
import platform

import torch
import torch.nn.functional as F
from peer_protocol import Peer, serve
from torch import nn

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class MlpBlock(nn.Module):
    """fc2(gelu(fc1(x)))"""

    def __init__(self, width, hidden):
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class EncoderBlock(nn.Module):
    """torchvision's: nn.MultiheadAttention without weights, layer norms in front."""

    def __init__(self, width, heads, hidden):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = MlpBlock(width, hidden)

    def forward(self, x):
        y = self.ln_1(x)
        y, _ = self.self_attention(y, y, y, need_weights=False)
        x = x + y
        return x + self.mlp(self.ln_2(x))


class Encoder(nn.Module):
    def __init__(self, a, tokens):
        super().__init__()
        self.pos_embedding = nn.Parameter(0.02 * torch.randn(1, tokens, a["width"]))
        self.layers = nn.Sequential(
            *[EncoderBlock(a["width"], a["heads"], a["hidden"]) for _ in range(a["layers"])]
        )
        self.ln = nn.LayerNorm(a["width"], eps=1e-6)

    def forward(self, x):
        return self.ln(self.layers(x + self.pos_embedding))


class VisionTransformer(nn.Module):
    """torchvision's vit_b_16 and its kind."""

    def __init__(self, a):
        super().__init__()
        tokens = (a["image_size"] // a["patch"]) ** 2 + 1
        self.conv_proj = nn.Conv2d(a["channels"], a["width"], a["patch"], a["patch"])
        self.class_token = nn.Parameter(torch.zeros(1, 1, a["width"]))
        self.encoder = Encoder(a, tokens)
        self.head = nn.Linear(a["width"], a["classes"])

    def forward(self, images):
        x = self.conv_proj(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], dim=1)
        return self.head(self.encoder(x)[:, 0])


class CompactTransformer(nn.Module):
    """Hassani et al.'s, arXiv:2104.05704: convolution stages and sequence pooling."""

    def __init__(self, a):
        super().__init__()
        stem, channels, side = [], a["channels"], a["image_size"]
        for out in a["stages"]:
            stem += [nn.Conv2d(channels, out, 3, padding=1, bias=False)]
            stem += [nn.MaxPool2d(3, 2, 1), nn.ReLU()]
            channels, side = out, (side - 1) // 2 + 1
        self.stem = nn.Sequential(*stem)
        self.encoder = Encoder(a, side * side)
        self.attention_pool = nn.Linear(a["width"], 1)
        self.head = nn.Linear(a["width"], a["classes"])

    def forward(self, images):
        x = self.encoder(self.stem(images).flatten(2).transpose(1, 2))
        weights = torch.softmax(self.attention_pool(x), dim=1)
        return self.head((weights.transpose(1, 2) @ x).squeeze(1))


class OneDnnLinear(torch.autograd.Function):
    """F.linear in f32 by oneDNN, by the op that torch.compile calls: on processors of AMD's it takes
    half of the time of MKL, which eager PyTorch takes."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return OneDnnLinear.product(x, weight, bias)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        rows_x, rows_dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
        dx = OneDnnLinear.product(dy, weight.t()) if ctx.needs_input_grad[0] else None
        dweight = OneDnnLinear.product(rows_dy.t(), rows_x.t()) if ctx.needs_input_grad[1] else None
        return dx, dweight, rows_dy.sum(0) if ctx.has_bias else None

    @staticmethod
    def product(x, weight, bias=None):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def by_onednn(run):
    """run() with OneDnnLinear for F.linear."""
    linear = F.linear

    def onednn_linear(x, weight, bias=None):
        return OneDnnLinear.apply(x, weight, bias)

    def replaced():
        F.linear = onednn_linear
        torch.backends.mha.set_fastpath_enabled(False)  # which has a product of its own
        try:
            run()
        finally:
            F.linear = linear
            torch.backends.mha.set_fastpath_enabled(True)

    return replaced


def make_model(work):
    architecture = work["architecture"]
    kind = CompactTransformer if "stages" in architecture else VisionTransformer
    return kind(architecture)


class PyTorch(Peer):
    def __init__(self, arguments):
        super().__init__(arguments)
        torch.set_num_threads(arguments.threads)
        self.device = torch.device(arguments.device)

    def synchronize(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def randn(self, *shape, dtype=torch.float32):
        return torch.randn(*shape, device=self.device).to(dtype)

    # What each kind of work is. They return a function without arguments, and facts about it.

    def train(self, work, side):
        """One step. With "graph" it is one CUDA graph, or compiled to some."""
        model = make_model(work).to(self.device).train()
        graph = work.get("graph", False)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, capturable=graph)
        a = work["architecture"]
        images = self.randn(work["batch"], a["channels"], a["image_size"], a["image_size"])
        labels = torch.arange(work["batch"], device=self.device) % a["classes"]
        narrow = AUTOCAST.get(work["precision"])
        scaler = torch.amp.GradScaler(self.device.type, enabled=work["precision"] == "fp16")
        torch.backends.cuda.matmul.allow_tf32 = work["precision"] == "tf32"

        def loss_of(images, labels):
            with torch.autocast(self.device.type, dtype=narrow, enabled=narrow is not None):
                logits = model(images)
            return F.cross_entropy(logits.float(), labels)

        if side == "compile":
            loss_of = torch.compile(loss_of, mode="reduce-overhead" if graph else None)

        def step():
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss_of(images, labels)).backward()
            scaler.step(optimizer)
            scaler.update()

        if graph and side == "eager":
            step = self.captured(step)
        return step, {"parameters": sum(p.numel() for p in model.parameters())}

    def captured(self, step):
        """The step as one CUDA graph, after some on a stream of their own, as its documentation asks."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return graph.replay

    def infer(self, work, side):
        model = make_model(work).to(self.device).eval()
        a = work["architecture"]
        images = self.randn(work["batch"], a["channels"], a["image_size"], a["image_size"])
        narrow = work["precision"] == "bf16"
        forward = torch.compile(model) if side == "compile" else model
        device = self.device.type
        torch.clear_autocast_cache()

        # As within one autocast around a loop over batches: the weights are cast once. One within each call would clear the
        # casts at its end, and inference_mode keeps none.
        def run():
            torch.set_autocast_dtype(device, torch.bfloat16)
            torch.set_autocast_enabled(device, narrow)
            with torch.no_grad() if narrow else torch.inference_mode():
                forward(images)
            torch.set_autocast_enabled(device, False)

        return run, {"parameters": sum(p.numel() for p in model.parameters())}

    def op(self, work, function, inputs, side):
        """function(*inputs) alone, or with the gradients of all floating inputs."""
        if side == "compile":
            function = torch.compile(function)
        if not work["backward"]:

            def forward():
                with torch.no_grad():
                    function(*inputs)

            return forward, {}
        leaves = [x.requires_grad_() for x in inputs if x.is_floating_point()]
        with torch.no_grad():
            dy = torch.randn_like(function(*inputs))

        def both():
            function(*inputs).backward(dy)
            for leaf in leaves:
                leaf.grad = None

        return both, {}

    def gemm(self, work, side):
        dtype = DTYPES[work["precision"]]
        x = self.randn(work["m"], work["k"], dtype=dtype)
        weight = self.randn(work["n"], work["k"], dtype=dtype)
        # By way of the module: what F.linear is may change.
        return self.op(work, lambda x, weight: F.linear(x, weight), [x, weight], side)

    def softmax(self, work, side):
        x = self.randn(*work["shape"], dtype=DTYPES[work["precision"]])
        return self.op(work, lambda x: torch.softmax(x, -1), [x], side)

    def layer_norm(self, work, side):
        dtype, width = DTYPES[work["precision"]], work["shape"][-1]
        x = self.randn(*work["shape"], dtype=dtype)
        weight, bias = self.randn(width, dtype=dtype), self.randn(width, dtype=dtype)
        function = lambda x, weight, bias: F.layer_norm(x, (width,), weight, bias, 1e-6)
        return self.op(work, function, [x, weight, bias], side)

    def gelu(self, work, side):
        x = self.randn(*work["shape"], dtype=DTYPES[work["precision"]])
        return self.op(work, F.gelu, [x], side)

    def attention(self, work, side):
        dtype = DTYPES[work["precision"]]
        shape = [work["batch"], work["heads"], work["tokens"], work["depth"]]
        qkv = [self.randn(*shape, dtype=dtype) for _ in range(3)]
        return self.op(work, F.scaled_dot_product_attention, qkv, side)

    def cross_entropy(self, work, side):
        logits = self.randn(*work["shape"], dtype=DTYPES[work["precision"]])
        labels = torch.arange(work["shape"][0], device=self.device) % work["shape"][1]
        return self.op(work, F.cross_entropy, [logits, labels], side)

    def chain(self, work, side):
        x, y, z = (self.randn(*work["shape"], dtype=DTYPES[work["precision"]]) for _ in range(3))
        return self.op(work, lambda x, y, z: torch.sigmoid(x * y + z) * x - y, [x, y, z], side)

    def sum(self, work, side):
        x = self.randn(*work["shape"], dtype=DTYPES[work["precision"]])
        return self.op(work, lambda x: x.sum(work["dims"]), [x], side)

    def cast(self, work, side):
        x = self.randn(*work["shape"], dtype=DTYPES[work["from"]])
        return self.op(work, lambda x: x.to(DTYPES[work["to"]]), [x], side)

    def max_pool(self, work, side):
        x = self.randn(*work["shape"], dtype=DTYPES[work["precision"]])
        return self.op(work, lambda x: F.max_pool2d(x, 3, 2, 1), [x], side)

    def adamw(self, work, side):
        model = make_model(work).to(self.device)
        parameters = [p.detach().requires_grad_() for p in model.parameters()]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        # "eager" is what a user gets who says nothing; "fused" is the one-pass kernel.
        optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True if side == "fused" else None)
        return optimizer.step, {"parameters": sum(p.numel() for p in parameters)}

    def dispatch(self, work, side):
        x = torch.ones(1, device=self.device)
        y = torch.ones(1, device=self.device)
        if work["tape"]:
            x.requires_grad_()

        def run():
            for _ in range(work["repeats"]):
                x + y

        return run if work["tape"] else torch.no_grad()(run), {}

    def jpeg(self, work, side):
        with open(work["path"], "rb") as file:
            data = file.read()
        mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
        from PIL import Image

        torch.set_num_threads(1)
        facts = {"decoder": "Pillow"}
        try:
            from torchvision import transforms as T
        except ImportError:
            return self.jpeg_without_torchvision(work, data, mean, std), facts
        facts["decoder"] = "Pillow, torchvision.transforms"
        prepare = T.Compose([T.Resize(256), T.CenterCrop(224), T.ToTensor(), T.Normalize(mean, std)])
        return lambda: prepare(Image.open(io.BytesIO(data)).convert("RGB")), facts

    def jpeg_without_torchvision(self, work, data, mean, std):
        """What torchvision's transforms do, in the same calls of Pillow and PyTorch."""
        import numpy
        from PIL import Image

        mean, std = torch.tensor(mean)[:, None, None], torch.tensor(std)[:, None, None]

        def run():
            image = Image.open(io.BytesIO(data)).convert("RGB")
            width, height = image.size
            scale = 256 / min(width, height)
            image = image.resize((int(width * scale), int(height * scale)), Image.BILINEAR)
            left, top = (image.width - 224) // 2, (image.height - 224) // 2
            image = image.crop((left, top, left + 224, top + 224))
            pixels = torch.from_numpy(numpy.array(image)).permute(2, 0, 1).contiguous()
            return pixels.to(torch.float32).div(255).sub_(mean).div_(std)

        return run

    def save(self, work, side):
        state = make_model(work).to(self.device).state_dict()
        path = os.path.join(self.directory, "peer.pth")

        def run():
            with open(path, "wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())

        return run, {"bytes": sum(t.nbytes for t in state.values())}

    def load(self, work, side):
        model = make_model(work).to(self.device)
        path = os.path.join(self.directory, "peer.pth")
        torch.save(model.state_dict(), path)

        def run():
            model.load_state_dict(torch.load(path, map_location=self.device, weights_only=True))

        return run, {"bytes": os.path.getsize(path)}

    # The requests.

    def make(self, work, side):
        torch.manual_seed(0)
        run, facts = super().make(work, side)
        return by_onednn(run) if side == "onednn" else run, facts

    def hello(self, request):
        one = torch.ones(1, device=self.device)
        assert (one + one).item() == 2
        answer = {
            "program": "PyTorch",
            "version": torch.__version__,
            "python": platform.python_version(),
            "threads": torch.get_num_threads(),
            "instruction_set": torch.backends.cpu.get_cpu_capability(),
            "mkldnn": torch.backends.mkldnn.is_available(),
            "optimizer": "torch.optim.AdamW(fused=True)",
        }
        if self.device.type == "cuda":
            answer["device"] = torch.cuda.get_device_name()
        return answer

    def profile(self, request):
        run, _ = self.runs[request["side"]]
        with torch.profiler.profile() as profile:
            run()
            self.synchronize()
        rows = [
            {"name": row.key, "calls": row.count, "ms": row.self_cpu_time_total / 1e3}
            for row in profile.key_averages()
        ]
        rows.sort(key=lambda row: -row["ms"])
        return {"rows": rows[:12]}

    def memory(self, request):
        if self.device.type == "cuda":
            return {"peak_bytes": torch.cuda.max_memory_reserved()}
        return super().memory(request)

    def drop(self, request):
        super().drop(request)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        torch.compiler.reset()
        torch.set_num_threads(self.threads)
        return {}


if __name__ == "__main__":
    serve(PyTorch)
