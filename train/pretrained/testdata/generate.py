#!/usr/bin/env python3
"""Writes this folder's files, or their like, with transformers.

    python3 -m venv VENV && VENV/bin/pip install torch transformers safetensors
    VENV/bin/python generate.py [FOLDER] [SEED]      without them: these files

gpt2/           GPT2LMHeadModel as save_pretrained writes it, of two layers and random weights
gpt2/hub.bin    its state under the names of the first published file: without "transformer.", with
                the causal masks
expected.safetensors
                tokens, both models' logits in f64 (of Llama with norms and angles in
                f32, which it always has), and as "llama.KEY" the weights of a
                LlamaForCausalLM under Weft's names, query, key and value joined
"""

import os
import sys
from collections import OrderedDict

import safetensors.torch
import torch
import transformers

FOLDER = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
SEED = int(sys.argv[2]) if len(sys.argv) > 2 else 0
VOCABULARY, CONTEXT, LAYERS, HEADS, WIDTH = 24, 12, 2, 2, 8


def path(name):
    return os.path.join(FOLDER, name)


def randomise(model):
    """Random in every tensor: zeros and ones would hide a swapped pair."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter) + 0.1)
    return model.eval()


def gpt2():
    return randomise(
        transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=WIDTH,
                                    n_layer=LAYERS, n_head=HEADS, layer_norm_epsilon=1e-3,
                                    bos_token_id=0, eos_token_id=0)))


def llama():
    return randomise(
        transformers.LlamaForCausalLM(
            transformers.LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=CONTEXT,
                                     hidden_size=WIDTH, num_hidden_layers=LAYERS,
                                     num_attention_heads=HEADS, num_key_value_heads=1,
                                     intermediate_size=12, rms_norm_eps=1e-5, bos_token_id=0,
                                     eos_token_id=0, tie_word_embeddings=False)))


def our_names(state):
    """A LlamaForCausalLM's state under Weft's names."""
    ours = OrderedDict()
    ours["wte.weight"] = state["model.embed_tokens.weight"]
    for i in range(LAYERS):
        theirs = lambda name: state[f"model.layers.{i}.{name}.weight"]
        parts = {
            "ln_1": theirs("input_layernorm"),
            "attn.c_attn": torch.cat([theirs(f"self_attn.{part}_proj") for part in "qkv"]),
            "attn.c_proj": theirs("self_attn.o_proj"),
            "ln_2": theirs("post_attention_layernorm"),
            "mlp.c_fc": theirs("mlp.up_proj"),
            "mlp.c_gate": theirs("mlp.gate_proj"),
            "mlp.c_proj": theirs("mlp.down_proj"),
        }
        ours.update((f"h.{i}.{name}.weight", tensor) for name, tensor in parts.items())
    ours["ln_f.weight"] = state["model.norm.weight"]
    ours["lm_head.weight"] = state["lm_head.weight"]
    return ours


def main():
    transformers.logging.disable_progress_bar()
    torch.manual_seed(SEED)
    tokens = torch.randint(0, VOCABULARY, (2, CONTEXT))
    expected = {"tokens": tokens}

    model = gpt2()
    model.save_pretrained(path("gpt2"))
    os.remove(path("gpt2/generation_config.json"))
    published = OrderedDict(
        (key.removeprefix("transformer."), tensor) for key, tensor in model.state_dict().items()
        if key != "lm_head.weight")
    for i in range(LAYERS):
        published[f"h.{i}.attn.bias"] = torch.ones(CONTEXT, CONTEXT).tril()[None, None]
    torch.save(published, path("gpt2/hub.bin"))

    other = llama()
    for key, tensor in our_names(other.state_dict()).items():
        expected["llama." + key] = tensor.clone()
    with torch.no_grad():
        expected["logits.gpt2"] = model.double()(tokens).logits
        expected["logits.llama"] = other.double()(tokens).logits
    safetensors.torch.save_file(expected, path("expected.safetensors"))


if __name__ == "__main__":
    main()
