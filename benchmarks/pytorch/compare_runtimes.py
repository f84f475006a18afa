#!/usr/bin/env python3
"""OpenVINO's and ONNX Runtime's half of `weft compare`: inference of PyTorch's models, converted as
their documentation says. peer_protocol.py says how it is asked.

    compare_runtimes.py openvino|onnxruntime --threads N --directory DIR
"""

import importlib
import os
import platform
import sys

import torch
from compare_peer import make_model
from peer_protocol import Peer, serve


class Runtime(Peer):
    def infer(self, work, side):
        torch.manual_seed(0)
        torch.set_num_threads(self.threads)
        model, a = make_model(work).eval(), work["architecture"]
        images = torch.randn(work["batch"], a["channels"], a["image_size"], a["image_size"])
        # torch's own fused path is no graph of ops.
        torch.backends.mha.set_fastpath_enabled(False)
        with torch.no_grad():
            run, result = self.converted(model, images, work["precision"])
            wanted = model(images)
        error = (torch.as_tensor(result()) - wanted).abs().max() / wanted.abs().max()
        bound = {"fp32": 1e-3, "bf16": 0.1}[work["precision"]]
        if not error < bound:
            raise ValueError(f"the converted model's logits are off by {error:.2g}")
        return run, {"parameters": sum(p.numel() for p in model.parameters())}

    def hello(self, request):
        module = importlib.import_module(self.package)
        return {
            "program": self.program,
            "version": module.__version__,
            "python": platform.python_version(),
            "threads": self.threads,
        }


class OpenVino(Runtime):
    program, package = "OpenVINO", "openvino"

    def converted(self, model, images, precision):
        import openvino

        settings = {
            "INFERENCE_PRECISION_HINT": {"fp32": "f32", "bf16": "bf16"}[precision],
            "INFERENCE_NUM_THREADS": self.threads,
            "PERFORMANCE_HINT": "LATENCY",
        }
        graph = openvino.convert_model(model, example_input=images, input=list(images.shape))
        request = openvino.Core().compile_model(graph, "CPU", settings).create_infer_request()
        request.set_input_tensor(openvino.Tensor(images.numpy(), shared_memory=True))

        def result():
            request.infer()
            return request.get_output_tensor().data.copy()

        return request.infer, result


class OnnxRuntime(Runtime):
    program, package = "ONNX Runtime", "onnxruntime"

    def converted(self, model, images, precision):
        import onnxruntime

        if precision != "fp32":
            raise ValueError(f"no {precision} on this device")
        path = os.path.join(self.directory, "model.onnx")
        torch.onnx.export(model, (images,), path, dynamo=False, input_names=["images"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        feed = {"images": images.numpy()}
        run = lambda: session.run(None, feed)
        return run, lambda: run()[0]


if __name__ == "__main__":
    serve({"openvino": OpenVino, "onnxruntime": OnnxRuntime}[sys.argv.pop(1)])
