"""The sampler's own copy of a model, and new weights for it."""

from __future__ import annotations

import copy
from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from practicum.errors import UserError
from practicum.sampling.local.attention import ATTENTION
from practicum.types import Weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def own_copy(model: PreTrainedModel, dtype: str) -> PreTrainedModel:
    """A copy that computes in `dtype` and learns nothing. Raises UserError for attention that is not supported."""
    config = model.config.get_text_config()
    odd = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if odd or getattr(config, "attn_logit_softcapping", None) is not None:
        raise UserError(
            f"the local sampler needs plain full or sliding-window attention; {type(model).__name__} has "
            f"{', '.join(sorted(odd)) or 'capped attention scores'}; use another sampler for it"
        )
    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16, "auto": fast_dtype(model.device)}
    if dtype not in kinds:
        raise UserError(f"dtype must be one of {', '.join(sorted(kinds))}, found {dtype!r}")
    own = copy.deepcopy(model).eval().requires_grad_(False)
    own.zero_grad(set_to_none=True)
    own.set_attn_implementation(ATTENTION)
    # Parameters only: buffers hold the rotary frequencies, which bfloat16 would blur at far positions.
    for parameter in own.parameters():
        parameter.data = parameter.data.to(kinds[dtype])
    return own


def fast_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the processor computes in it, else float32."""
    if device.type == "cuda":
        return torch.bfloat16
    cpuinfo = Path("/proc/cpuinfo")
    flags = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()
    return torch.bfloat16 if flags & {"avx512_bf16", "amx_bf16"} else torch.float32


def copy_weights(model: PreTrainedModel, weights: Weights, needed: Set[str]) -> None:
    """Copy tensors into the model's parameters, after every name and shape was seen to fit and none needed to lack."""
    own = model.state_dict(keep_vars=True)
    unknown = sorted(set(weights.tensors) - set(own))
    given = {id(own[name]) for name in weights.tensors if name in own}
    missing = sorted(name for name, p in model.named_parameters() if name in needed and id(p) not in given)
    shapes = [
        f"{name} {tuple(tensor.shape)} for {tuple(own[name].shape)}"
        for name, tensor in weights.tensors.items()
        if name in own and tensor.shape != own[name].shape
    ]
    for problem, names in (("unknown", unknown), ("missing", missing), ("of another shape", shapes)):
        if names:
            raise UserError(
                f"weights version {weights.version} do not fit the sampler's model: {len(names)} tensors are "
                f"{problem}, such as {', '.join(names[:3])}; publish the tensors of the same architecture"
            )
    with torch.no_grad():
        for name, tensor in weights.tensors.items():
            own[name].copy_(tensor)
