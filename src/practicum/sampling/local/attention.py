"""Keys and values of many contexts in blocks of one store, and attention that reads them where they lie.

The model runs on one flat row of tokens, however many contexts these come from: nothing is padded outside attention.
A context that adds one token reads its blocks together with all the others that do: a block that many share is read
once for several of them. A context that adds many reads its own.

Axes: T tokens of this pass, C contexts of this pass, R rows (tokens whose context adds one), M blocks of a row, P
blocks of the store, L positions of a block, I items of a part, U rows that an item serves, W = U x G, Q queries of a
context, H query heads, N key/value heads, G = H / N, D width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from practicum.sampling.local.contexts import BLOCK, GROWTH

ATTENTION = "practicum_blocks"
WIDTHS = {1: 1, 2: 8, 32: 64}
"Users of a block, at least -> rows that one item serves."
MOST_SCORES = 2**24
"Of the scores of a context that adds many tokens, so many are in memory at once."
EXACT_WIDTH = 8
"Of every item in the deterministic mode, where no product may depend on who else uses a block."


@dataclass(frozen=True, eq=False)
class Part:
    """Blocks to be read for some rows each: one matrix product for all of them."""

    blocks: slice | Tensor
    "Of the store, (I,): a slice is read in place, unused blocks between the others included."
    rows_IU: Tensor
    "Rows that a block is read for; the last ones may stand there again, for nothing."
    places_IU: Tensor
    "Where these blocks stand among the (R x M) of all rows."


@dataclass(frozen=True, eq=False)
class Pass:
    """The contexts that one forward pass extends.

    Example: Pass((200, 0), (1, 64), ((7, 3, 9, 4), (5,)), device) computes position 200 of one context, which lies in
    block 4, and positions 0 to 63 of another.
    """

    starts: tuple[int, ...]
    "Shape (C,): first position computed. Contexts that add one token come first."
    counts: tuple[int, ...]
    "Shape (C,): positions computed."
    blocks: tuple[Sequence[int], ...]
    "Shape (C,): blocks that hold each context up to its last position computed, at least."
    device: torch.device
    exact: bool = False
    "Every token is a row of its own, and computed as it would be in any other company."
    positions_T: Tensor = field(init=False)
    blocks_T: Tensor = field(init=False)
    "Where each token's key and value go, with `offsets_T`."
    offsets_T: Tensor = field(init=False)
    parts: tuple[Part, ...] = field(init=False)
    scores_RM: Tensor = field(init=False)
    "Which of the results of all parts, laid end to end, belongs to each block of each row."
    sums_RM: Tensor = field(init=False)
    "The same, with a result of zero behind the last one where a row has fewer than M blocks."
    masks: dict[Any, Tensor] = field(init=False, default_factory=dict)
    "Built once per pass and shape, shared by all layers."

    def __post_init__(self) -> None:
        starts, counts = np.array(self.starts), np.array(self.counts)
        context_T = np.repeat(np.arange(len(counts)), counts)
        positions_T = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts - starts, counts)
        ends = np.cumsum([0, *(len(blocks) for blocks in self.blocks)])[:-1]
        laid = np.concatenate([np.asarray(blocks, np.int64) for blocks in self.blocks])
        self._set("positions_T", positions_T)
        self._set("blocks_T", laid[ends[context_T] + positions_T // BLOCK])
        self._set("offsets_T", positions_T % BLOCK)
        rows = len(positions_T) if self.exact else int((counts == 1).sum())
        many_R = positions_T[:rows] // BLOCK + 1
        row_M = np.repeat(np.arange(rows), many_R)
        place_M = np.arange(many_R.sum()) - np.repeat(np.cumsum(many_R) - many_R, many_R)
        self._plan(row_M, place_M, laid[ends[context_T[row_M]] + place_M], rows, int(many_R.max(initial=0)))

    def _set(self, name: str, array: NDArray[Any]) -> None:
        object.__setattr__(self, name, torch.from_numpy(array).to(self.device))

    def _plan(self, row_M: Any, place_M: Any, block_M: Any, rows: int, most: int) -> None:
        """From (row, place in the row, block) to as few matrix products as pay."""
        parts: list[Part] = []
        results = 0
        scores_RM = np.zeros((rows, most), np.int64)
        sums_RM = np.full((rows, most), -1)
        users_M = np.bincount(block_M)[block_M] if len(block_M) else block_M
        least = sorted(WIDTHS)
        for n, (users, width) in enumerate([(1, EXACT_WIDTH)] if self.exact else WIDTHS.items()):
            below = np.inf if self.exact or n + 1 == len(least) else least[n + 1]
            chosen = np.flatnonzero((users_M >= users) & (users_M < below))
            if not len(chosen):
                continue
            order = chosen[np.argsort(block_M[chosen], kind="stable")]
            block_C, row_C, place_C = block_M[order], row_M[order], place_M[order]
            begins = np.flatnonzero(np.diff(block_C, prepend=-1))
            rank_C = np.arange(len(order)) - np.repeat(begins, np.diff([*begins, len(order)]))
            item_C = np.cumsum(rank_C % width == 0) - 1
            blocks_I = block_C[rank_C % width == 0]
            blocks: slice | Tensor = torch.from_numpy(blocks_I).to(self.device)
            span = int(blocks_I[-1] - blocks_I[0]) + 1
            if width == 1 and span <= 2 * len(blocks_I):
                item_C, blocks = block_C - blocks_I[0], slice(int(blocks_I[0]), int(blocks_I[0]) + span)
            items = int(item_C[-1]) + 1
            rows_IU, places_IU = np.zeros((items, width), np.int64), np.zeros((items, width), np.int64)
            lane_C = rank_C % width
            rows_IU[item_C, lane_C], places_IU[item_C, lane_C] = row_C, row_C * most + place_C
            scores_RM[row_C, place_C] = sums_RM[row_C, place_C] = results + item_C * width + lane_C
            results += items * width
            parts.append(Part(blocks, *(torch.from_numpy(a).to(self.device) for a in (rows_IU, places_IU))))
        object.__setattr__(self, "parts", tuple(parts))
        self._set("scores_RM", scores_RM)
        self._set("sums_RM", np.where(sums_RM < 0, results, sums_RM))

    @property
    def rows(self) -> int:
        """How many of the first tokens are rows."""
        return len(self.scores_RM)

    @cached_property
    def chunks(self) -> tuple[tuple[int, slice, Tensor, int], ...]:
        """Of each context that adds many tokens: its number, its tokens, its blocks, and its length afterwards."""
        ends = np.cumsum(self.counts)
        return tuple(
            (n, slice(end - count, end), torch.tensor(list(self.blocks[n]), device=self.device), start + count)
            for n, (start, count, end) in enumerate(zip(self.starts, self.counts, ends.tolist(), strict=True))
            if end - count >= self.rows
        )

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
    """Keys and values of all layers, (P, N, L, D) each, allocated as blocks come into use."""

    def __init__(self, blocks: int) -> None:
        super().__init__(layers=[])
        self.blocks = blocks
        self.pairs: list[tuple[Tensor, Tensor]] = []
        self.cleared = 0
        self.now: Pass | None = None
        "The pass that `update` writes for."

    def begin(self, step: Pass, touched: int) -> None:
        """Write for a pass until the next one begins; `touched` blocks may be in use."""
        self.now = step
        # The store is as large as it may become from the beginning, but memory that was never written is not there.
        while self.cleared < touched:
            fresh = slice(self.cleared, min(self.cleared + GROWTH, self.blocks))
            for pair in self.pairs:
                for part in pair:
                    part[fresh] = 0  # a hidden key has weight 0, and 0 times NaN would still be NaN
            self.cleared = fresh.stop

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write (1, N, T, D) keys and values where the pass says; returns the layer's whole store."""
        return self.write(layer_idx, key_states[0].transpose(0, 1), value_states[0].transpose(0, 1))

    def write(self, layer: int, keys_TND: Tensor, values_TND: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values where the pass says; returns the layer's whole store."""
        assert self.now is not None
        if layer == len(self.pairs):
            shape = (self.blocks, keys_TND.shape[1], BLOCK)
            pair = (keys_TND.new_empty(*shape, keys_TND.shape[2]), values_TND.new_empty(*shape, values_TND.shape[2]))
            for part in pair:
                part[: self.cleared] = 0
            self.pairs.append(pair)
        keys, values = self.pairs[layer]
        keys[self.now.blocks_T, :, self.now.offsets_T] = keys_TND
        values[self.now.blocks_T, :, self.now.offsets_T] = values_TND
        return keys, values

    def copy(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, all at once: (from, to) each."""
        if copies and self.pairs:
            sources, targets = torch.tensor(copies, device=self.pairs[0][0].device).unbind(1)
            for pair in self.pairs:
                for part in pair:
                    part[targets] = part[sources]


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
    return attended(step, query[0].transpose(0, 1), key, value, scaling, sliding_window)[None], None


def attended(
    step: Pass,
    query_THD: Tensor,
    keys_PNLD: Tensor,
    values_PNLD: Tensor,
    scaling: float | None = None,
    window: int | None = None,
) -> Tensor:
    """What each token of a pass sees of its own context, shape (T, H, D)."""
    scale = query_THD.shape[-1] ** -0.5 if scaling is None else scaling
    found = [_of_rows(step, query_THD[: step.rows], keys_PNLD, values_PNLD, scale, window)] if step.rows else []
    for name, tokens, blocks, length in step.chunks:
        # Indexed first: to pick from a transposed store would copy all of it.
        keys, values = (part[blocks].transpose(0, 1).flatten(1, 2) for part in (keys_PNLD, values_PNLD))
        found.append(_of_chunk(step, name, query_THD[tokens], keys, values, length, scale, window))
    return torch.cat(found) if len(found) > 1 else found[0]


def _of_rows(step: Pass, query_RHD: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None) -> Tensor:
    """One softmax per row over the scores of its blocks, then the sum of what each block gives."""
    query_RNGD = query_RHD.unflatten(1, (keys.shape[1], -1))
    rows, heads, groups, width = query_RNGD.shape
    most = step.scores_RM.shape[1]
    found = []
    for part in step.parts:
        # Keys stand first: with few rows the product is then twice as fast.
        scores_INLW = keys[part.blocks] @ _gather(query_RNGD, part.rows_IU).transpose(-1, -2)
        found.append(_by_row(scores_INLW.transpose(-1, -2), part, groups))
    scores_RMNGL = (torch.cat(found) if len(found) > 1 else found[0])[step.scores_RM]
    scores_RNGK = scores_RMNGL.permute(0, 2, 3, 1, 4).reshape(rows, heads, groups, most * BLOCK)
    mask = step.mask("rows", step.positions_T[:rows, None], most * BLOCK, window, torch.float32)
    weights_RNGK = torch.add(mask, scores_RNGK, alpha=scale).softmax(-1).to(query_RHD.dtype)
    weights_WNGL = weights_RNGK.unflatten(-1, (most, BLOCK)).permute(0, 3, 1, 2, 4).flatten(0, 1)
    found = [_by_row(_gather(weights_WNGL, part.places_IU) @ values[part.blocks], part, groups) for part in step.parts]
    nothing = query_RHD.new_zeros(1, heads, groups, width)
    parts_RMNGD = torch.cat([*found, nothing])[step.sums_RM]
    return parts_RMNGD.sum(1, dtype=torch.float32).to(query_RHD.dtype).flatten(1, 2)


def _gather(of_rows_xNGy: Tensor, rows_IU: Tensor) -> Tensor:
    """What belongs to the rows of each item, one below the other, (I, N, W, y)."""
    return of_rows_xNGy[rows_IU].transpose(1, 2).flatten(2, 3)


def _by_row(found_INWy: Tensor, part: Part, groups: int) -> Tensor:
    """What an item gives, row after row, (I * U, N, G, y)."""
    return found_INWy.unflatten(2, (part.rows_IU.shape[1], groups)).transpose(1, 2).flatten(0, 1)


def _of_chunk(
    step: Pass,
    name: int,
    query_QHD: Tensor,
    keys_NKD: Tensor,
    values_NKD: Tensor,
    length: int,
    scale: float,
    window: int | None,
) -> Tensor:
    """Contexts that add many tokens differ too much in length to share a batch: key/value heads are the batch.

    On a CPU plain products take half the time of the fused kernel.
    """
    queries, heads = len(query_QHD), len(keys_NKD)
    keys_NKD, values_NKD = keys_NKD[:, :length], values_NKD[:, :length]
    query_NGQD = query_QHD.transpose(0, 1).unflatten(0, (heads, -1))
    positions = torch.arange(length - queries, length, device=step.device)[None]
    mask_1QK = step.mask(name, positions, length, window, torch.float32)[0]
    found, many = [], max(1, MOST_SCORES // (length * query_QHD.shape[1]))
    for begin in range(0, queries, many):
        part_NGQD = query_NGQD[:, :, begin : begin + many]
        scores_NGQK = (part_NGQD.flatten(1, 2) @ keys_NKD.transpose(1, 2)).unflatten(1, part_NGQD.shape[1:3])
        weights_NGQK = torch.add(mask_1QK[:, begin : begin + many], scores_NGQK, alpha=scale).softmax(-1)
        found_NWD = weights_NGQK.to(values_NKD.dtype).flatten(1, 2) @ values_NKD
        found.append(found_NWD.unflatten(1, part_NGQD.shape[1:3]).flatten(0, 1).transpose(0, 1))
    return torch.cat(found)


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
