"""How large a model is, read from its files: no weights are loaded, no torch is needed."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from practicum.errors import UserError
from practicum.models.adapter import CONFIG as ADAPTER
from practicum.models.adapter import base_of
from practicum.models.known import ModelFiles, find


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The numbers that memory depends on, in the words of Llama's config.

    Example (SmolLM2-135M): ModelShape(parameters=134_515_008, layers=30, hidden=576, intermediate=1536, heads=9,
                                       kv_width=192, vocabulary=49_152, context=8192, adapter_per_rank=305_280,
                                       narrowest=192)
    """

    parameters: int
    "Tied ones counted once."
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_width: int
    "Key/value heads times the width of a head: numbers per layer and token that a key, or a value, has."
    vocabulary: int
    context: int
    "Positions that it was made for."
    adapter_per_rank: int
    "Parameters of a low-rank adapter of rank 1 beside every linear layer but the head."
    narrowest: int
    "The smaller side of the smallest of those layers: the highest rank that an adapter can have."


def shape_of(files: ModelFiles) -> ModelShape:
    """The shape of a model, of an adapter that of its base as far as that is on this machine.

    Raises UserError where the files do not say it.
    """
    folder = files.folder
    if (folder / ADAPTER).is_file():
        return shape_of(find(base_of(folder), progress=False, download=False))
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config = {**config, **config.get("text_config", {})}
        tensors = {name: shape for file in sorted(folder.glob("*.safetensors")) for name, shape in shapes_in(file)}
        heads = int(config["num_attention_heads"])
        width = int(config.get("head_dim") or config["hidden_size"] // heads)
        tied = config.get("tie_word_embeddings", False)
        counted = [shape for name, shape in tensors.items() if not (tied and name == "lm_head.weight")]
        linear = [shape for name, shape in tensors.items() if ".layers." in name and len(shape) == 2]
        return ModelShape(
            parameters=sum(map(math.prod, counted)),
            layers=int(config["num_hidden_layers"]),
            hidden=int(config["hidden_size"]),
            intermediate=int(config["intermediate_size"]),
            heads=heads,
            kv_width=width * int(config.get("num_key_value_heads") or heads),
            vocabulary=int(config["vocab_size"]),
            context=int(config["max_position_embeddings"]),
            adapter_per_rank=sum(map(sum, linear)),
            narrowest=min(map(min, linear)),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"the files in {folder} do not say how large the model is: {error!r}") from None


def shapes_in(file: Path) -> list[tuple[str, list[int]]]:
    """(name, shape) of every tensor of a safetensors file, from its header: 8 bytes of length, then JSON."""
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        header: dict[str, Any] = json.loads(opened.read(size))
    return [(name, entry["shape"]) for name, entry in header.items() if name != "__metadata__"]
