#!/usr/bin/env python3
"""Whether transformers reads a GPT-2 and computes what it should.

    python3 load.py FOLDER EXPECTED     a folder as save_pretrained makes; generate.py's tensors

Fails on a missing, unexpected or mismatched key, and on other logits in float64.
"""

import sys

import safetensors.torch
import torch
import transformers

transformers.logging.disable_progress_bar()
model, info = transformers.GPT2LMHeadModel.from_pretrained(sys.argv[1], output_loading_info=True)
wrong = {kind: keys for kind, keys in info.items() if keys}
assert not wrong, wrong
expected = safetensors.torch.load_file(sys.argv[2])
with torch.no_grad():
    logits = model.double().eval()(expected["tokens"]).logits
torch.testing.assert_close(logits, expected["logits.gpt2"], rtol=1e-12, atol=1e-12)
