"""How much is computed at a time: what memory has room for, and no more than makes it faster."""

from __future__ import annotations

from typing import Any

from practicum.models.memory import free_memory

TOGETHER, TOGETHER_ON_GPU = 1024, 32_768
"Unique tokens of a micro-batch of several trees: more are not faster."
FEWEST = 128
"Where memory has room for fewer, it is tried with so many."
STATES = 512
"States of the model whose log-probs over the vocabulary exist at once: 100 MB for 49,152 tokens."


def tokens_at_once(model: Any, asked: int) -> tuple[int, int]:
    """Unique tokens of a micro-batch, and of a single tree whose activations are kept: `asked`, or by the free memory.

    Example: SmolLM2-135M on a machine with 20 GB free -> (1024, 4096)
    """
    if asked:
        return asked, asked
    device = next(model.parameters()).device
    together, free = TOGETHER_ON_GPU if device.type == "cuda" else TOGETHER, free_memory(device)
    kept = together if free is None else fitting(model, free)
    return min(together, kept), kept


def fitting(model: Any, free: int) -> int:
    """Tokens whose activations fit into half of what gradients, optimizer and a sampler's copy leave of `free` bytes.

    A power of two, so that whatever else the machine runs hardly ever changes it: the split changes no gradient, but
    the last bits of its sums.
    """
    learned = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    room = (free - 4 * (3 * learned + model.num_parameters())) / 2
    return 1 << (max(FEWEST, int(room / activation_bytes(model.config.get_text_config()))).bit_length() - 1)


def activation_bytes(config: Any) -> int:
    """What the layers of a model keep of one token for the way back, in float32; the formula of docs/evaluation.md."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    per_layer = 8 * config.hidden_size + 2 * heads * width + 4 * config.intermediate_size
    return int(5 * config.num_hidden_layers * per_layer)
