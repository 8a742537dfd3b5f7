"""What one token costs in a model's forward pass, in floating-point operations and in bytes read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Cost:
    """The numbers that the work of a pass depends on.

    Counted as in arXiv:2001.08361, a multiplication and an addition as two: 2 for each parameter of the layers, and
    4 x layers x width of attention for each token that a token sees (the paper's 2, for the mean of a causal context).
    Embeddings are looked up, not multiplied; the head counts where logits are computed. Training a token costs three
    forward passes.

    Example (SmolLM2-135M): Cost(layers=106_168_320, head=28_311_552, attended=17_280, kept=11_520)
    """

    layers: int
    "Parameters of the matrices between embedding and head."
    head: int
    "Vocabulary times width."
    attended: int
    "Layers times query heads times the width of a head."
    kept: int
    "Numbers that a token leaves behind as keys and values."

    def flops(self, tokens: float, depth: float, logits: float) -> float:
        """Of a forward pass over `tokens` that see `depth` tokens each, `logits` of which are continued."""
        return 2 * tokens * self.layers + 4 * tokens * depth * self.attended + 2 * logits * self.head


def cost_of(model: Any) -> Cost:
    """The cost of a transformers causal language model, read from its config and parameters; an adapter's is added."""
    config = model.config.get_text_config()
    layers, heads = int(config.num_hidden_layers), int(config.num_attention_heads)
    width = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    embeddings = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    outside = {id(weight) for weight in embeddings}
    return Cost(
        layers=sum(p.numel() for p in model.parameters() if p.dim() > 1 and id(p) not in outside),
        head=int(embeddings[1].numel()),
        attended=layers * heads * width,
        kept=2 * layers * width * int(getattr(config, "num_key_value_heads", None) or heads),
    )
