"""A model as an engine of its own wants it: a folder with config, weights and adapter, kept up to date."""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from practicum.errors import UserError
from practicum.models import adapter
from practicum.models.load import save_tensors
from practicum.types import Weights

SHARED_MEMORY = Path("/dev/shm")
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Known:
    """A parameter that a publication has to hold: Known(("lm_head.weight", "model.embed_tokens.weight"), (259, 64))."""

    names: tuple[str, ...]
    "All that it has in the model's state dict; several where it is tied."
    shape: tuple[int, ...]


class ModelFolder:
    """A temporary folder with a model of transformers in `dtype`; what is published later is put into it, or only cast.

    Under an adapter, what is published is the adapter. Tied parameters are written out under each of their names and
    the config says that they are not tied: an engine that packs its output layer once (vLLM on a CPU) would otherwise
    not look at the embeddings again when they are replaced.

    Example:
        folder = ModelFolder(model, "bfloat16")
        folder.check(weights)
        folder.write(weights.tensors)
    """

    def __init__(self, model: Any, dtype: str, in_memory: bool = False) -> None:
        """`in_memory`: in shared memory, where the machine has it as a folder."""
        if dtype not in DTYPES:
            raise UserError(f"dtype must be one of auto, {', '.join(DTYPES)}, found {dtype!r}")
        self.dtype = dtype
        self.lora = model.peft_config[adapter.NAME] if adapter.has_adapter(model) else None
        "peft's description of the adapter; None for a model without one."
        self.known = known_of(model, only_learning=self.lora is not None)
        self.token_bytes = kept_bytes(model.config.get_text_config(), dtype)
        "Keys and values of one token."
        place = SHARED_MEMORY if in_memory and SHARED_MEMORY.is_dir() else None
        self.path = Path(tempfile.mkdtemp(prefix="practicum-", dir=place))
        self.remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        "Delete the folder; doing so twice does no harm, and at the end of the process it is done anyway."
        self.adapter = self.path / "adapter"
        "Where the adapter is, in peft's format; no part of the model, so that nobody reads it as such."
        table = model.config.to_dict()
        table |= {"tie_word_embeddings": False, "architectures": [type(model).__name__], "dtype": dtype}
        (self.path / "config.json").write_text(json.dumps(table, default=str), encoding="utf-8")
        base = ((name, tensor) for name, tensor in model.state_dict().items() if ".lora_" not in name)
        self._write_weights((name.replace(".base_layer.", "."), self._cast(tensor)) for name, tensor in base)
        if self.lora is not None:
            self.write({name: p for name, p in model.named_parameters() if p.requires_grad})

    def check(self, weights: Weights) -> None:
        """Raise UserError where names or shapes are not those of the model."""
        given = set(weights.tensors)
        unknown = sorted(given - set(self.known))
        missing = sorted({known.names[0] for known in self.known.values() if not given.intersection(known.names)})
        shapes = [
            f"{name} {tuple(tensor.shape)} for {self.known[name].shape}"
            for name, tensor in weights.tensors.items()
            if name in self.known and tuple(tensor.shape) != self.known[name].shape
        ]
        for problem, names in (("unknown", unknown), ("missing", missing), ("of another shape", shapes)):
            if names:
                raise UserError(
                    f"weights version {weights.version} do not fit the sampler's model: {len(names)} tensors are "
                    f"{problem}, such as {', '.join(names[:3])}; publish the tensors of the same architecture"
                )

    def cast(self, tensors: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Tensors in the folder's dtype, under each of their names."""
        for name, tensor in tensors.items():
            cast = self._cast(tensor)
            yield from ((alias, cast) for alias in self.known[name].names)

    def write(self, tensors: Mapping[str, Any]) -> None:
        """Replace the weights, or the adapter where there is one; that in the precision it has."""
        if self.lora is None:
            self._write_weights(self.cast(tensors))
            return
        table = {
            "peft_type": "LORA",
            "r": self.lora.r,
            "lora_alpha": self.lora.lora_alpha,
            "target_modules": sorted(self.lora.target_modules),
        }
        self.adapter.mkdir(exist_ok=True)
        (self.adapter / adapter.CONFIG).write_text(json.dumps(table), encoding="utf-8")
        named = {name.replace(f".{adapter.NAME}.", "."): tensor.detach() for name, tensor in tensors.items()}
        save_tensors(self.adapter / adapter.WEIGHTS, named)

    def _write_weights(self, tensors: Iterable[tuple[str, Any]]) -> None:
        # safetensors refuses two names for one piece of memory
        save_tensors(self.path / "model.safetensors", {name: tensor.clone() for name, tensor in tensors})

    def _cast(self, tensor: Any) -> Any:
        tensor = tensor.detach()
        return tensor.bfloat16() if self.dtype == "bfloat16" else tensor.float()


def known_of(model: Any, only_learning: bool) -> dict[str, Known]:
    """Every name of every parameter, or of those that learn."""
    wanted = {id(parameter) for parameter in model.parameters() if parameter.requires_grad or not only_learning}
    names: dict[int, list[str]] = {}
    state = model.state_dict(keep_vars=True)
    for name, tensor in state.items():
        if id(tensor) in wanted:
            names.setdefault(id(tensor), []).append(name)
    return {name: Known(tuple(same), tuple(state[name].shape)) for same in names.values() for name in same}


def kept_bytes(config: Any, dtype: str) -> int:
    """Keys and values of one token in every layer."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * width * (2 if dtype == "bfloat16" else 4)
