"""Keys and values of many contexts in one store, and attention that reads them where they lie.

The model's own forward runs on one flat row of tokens, however many contexts these come from: nothing is padded outside
attention. The cache writes each token's key and value to its slot; the attention function lets it see its slot only.

Axes: T tokens of this pass, R contexts of this pass, B rows of a batch, S slots, L positions, K visible positions,
H query heads, N key/value heads, G = H / N, D width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ATTENTION = "practicum_slots"
FIRST_LENGTH = 256
KEY_ROUNDING = 32


@dataclass(frozen=True, eq=False)
class Pass:
    """The contexts that one forward pass extends.

    Example: Pass((2, 5), (200, 0), (1, 64), device) computes position 200 of slot 2 and positions 0 to 63 of slot 5.
    """

    slots: tuple[int, ...]
    "Shape (R,), ascending where every count is 1."
    starts: tuple[int, ...]
    "Shape (R,): first position computed."
    counts: tuple[int, ...]
    "Shape (R,): positions computed."
    device: torch.device
    slots_T: Tensor = field(init=False)
    positions_T: Tensor = field(init=False)
    masks: dict[Any, Tensor] = field(init=False, default_factory=dict)
    "Built once per pass and shape, shared by all layers."

    def __post_init__(self) -> None:
        slots = [slot for slot, count in zip(self.slots, self.counts, strict=True) for _ in range(count)]
        positions = [start + i for start, count in zip(self.starts, self.counts, strict=True) for i in range(count)]
        object.__setattr__(self, "slots_T", torch.tensor(slots, device=self.device))
        object.__setattr__(self, "positions_T", torch.tensor(positions, device=self.device))

    @property
    def longest(self) -> int:
        """Positions that the longest of these contexts has after the pass."""
        return max(start + count for start, count in zip(self.starts, self.counts, strict=True))

    @property
    def span(self) -> range | None:
        """The slots to read as one block, gaps included; None where picking the rows out costs less."""
        low, high = self.slots[0], self.slots[-1] + 1
        return range(low, high) if high - low <= 2 * len(self.slots) else None

    def mask(self, name: Any, positions_BQ: Tensor, keys: int, window: int | None, dtype: torch.dtype) -> Tensor:
        """Additive mask (B, 1, Q, K): a query sees the keys up to its own position, within the window if any."""
        if (name, window) not in self.masks:
            behind_BQK = positions_BQ[:, :, None] - torch.arange(keys, device=self.device)
            hidden_BQK = behind_BQK < 0 if window is None else (behind_BQK < 0) | (behind_BQK >= window)
            # The lowest finite number, not -inf: a block of keys hidden as a whole then gives no NaN.
            mask_BQK = torch.zeros(hidden_BQK.shape, dtype=dtype, device=self.device)
            self.masks[name, window] = mask_BQK.masked_fill_(hidden_BQK, torch.finfo(dtype).min)[:, None]
        return self.masks[name, window]


class KeyValueStore(Cache):
    """One (S, N, L, D) pair of tensors per layer; L doubles when a context needs it, up to `context_length`."""

    def __init__(self, slots: int, context_length: int) -> None:
        super().__init__(layers=[])
        self.slots = slots
        self.context_length = context_length
        self.length = min(FIRST_LENGTH, context_length)
        self.pairs: list[tuple[Tensor, Tensor]] = []
        self.now: Pass | None = None
        "The pass that `update` writes for."

    def begin(self, step: Pass) -> None:
        """Make room for a pass and write for it until the next one begins."""
        length = self.length
        while length < step.longest:
            length = min(2 * length, self.context_length)
        if length > self.length:
            self.pairs = [(_longer(keys, length), _longer(values, length)) for keys, values in self.pairs]
            self.length = length
        self.now = step

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write (1, N, T, D) keys and values where the pass says; returns the layer's whole store."""
        assert self.now is not None
        if layer_idx == len(self.pairs):
            _, heads, _, width = key_states.shape
            # Zeros and not garbage: a hidden key has weight 0, and 0 times NaN would still be NaN.
            self.pairs.append(
                (
                    key_states.new_zeros(self.slots, heads, self.length, width),
                    value_states.new_zeros(self.slots, heads, self.length, value_states.shape[-1]),
                )
            )
        keys, values = self.pairs[layer_idx]
        keys[self.now.slots_T, :, self.now.positions_T] = key_states[0].transpose(0, 1)
        values[self.now.slots_T, :, self.now.positions_T] = value_states[0].transpose(0, 1)
        return keys, values

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot into another."""
        for keys, values in self.pairs:
            keys[target, :, :length] = keys[source, :, :length]
            values[target, :, :length] = values[source, :, :length]


def _longer(old: Tensor, length: int) -> Tensor:
    new = old.new_zeros(*old.shape[:2], length, old.shape[3])
    new[:, :, : old.shape[2]] = old
    return new


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    step: Pass | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of (1, H, T, D) queries over the whole store of a layer, as transformers' AttentionInterface calls it.

    Without a `step` it is transformers' own attention, so that the same model also runs a plain forward.
    """
    if step is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, sliding_window=sliding_window, **kwargs
        )
    read = _read_one_token_each if max(step.counts) == 1 else _read_row_by_row
    return read(step, query, key, value, scaling, sliding_window)[None], None


def _read_one_token_each(
    step: Pass, query: Tensor, keys: Tensor, values: Tensor, scaling: float | None, window: int | None
) -> Tensor:
    """Decoding: one batch; the G queries that share a key/value head stand where a sequence of queries would."""
    length = min(-(-step.longest // KEY_ROUNDING) * KEY_ROUNDING, keys.shape[2])
    query_RHD, positions_R, rows_R = query[0].transpose(0, 1), step.positions_T, None
    if step.span is None:
        keys = keys[:, :, :length].index_select(0, step.slots_T)
        values = values[:, :, :length].index_select(0, step.slots_T)
    else:
        block = slice(step.span.start, step.span.stop)
        keys, values = keys[block, :, :length], values[block, :, :length]
        if len(step.span) > len(step.slots):
            rows_R = step.slots_T - step.span.start
            positions_R = positions_R.new_zeros(len(step.span)).index_copy_(0, rows_R, positions_R)
            query_RHD = query_RHD.new_zeros(len(step.span), *query_RHD.shape[1:]).index_copy_(0, rows_R, query_RHD)
    mask = step.mask("one each", positions_R[:, None], length, window, query.dtype)
    query_BNGD = query_RHD.unflatten(1, (keys.shape[1], -1))
    found_BHD = scaled_dot_product_attention(query_BNGD, keys, values, attn_mask=mask, scale=scaling).flatten(1, 2)
    return found_BHD if rows_R is None else found_BHD.index_select(0, rows_R)


def _read_row_by_row(
    step: Pass, query: Tensor, keys: Tensor, values: Tensor, scaling: float | None, window: int | None
) -> Tensor:
    """Prefill: contexts differ too much in length to share a batch. Key/value heads are the batch, G their heads."""
    found, begin = [], 0
    for slot, start, count in zip(step.slots, step.starts, step.counts, strict=True):
        length = start + count
        query_NGQD = query[0, :, begin : begin + count].unflatten(0, (keys.shape[1], -1))
        expand = (-1, query_NGQD.shape[1], -1, -1)
        mask = step.mask(slot, step.positions_T[None, begin : begin + count], length, window, query.dtype)
        found_NGQD = scaled_dot_product_attention(
            query_NGQD,
            keys[slot, :, None, :length].expand(expand),
            values[slot, :, None, :length].expand(expand),
            attn_mask=mask,
            scale=scaling,
        )
        found.append(found_NGQD.flatten(0, 1).transpose(0, 1))
        begin += count
    return torch.cat(found)


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
