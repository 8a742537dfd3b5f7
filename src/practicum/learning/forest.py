"""Rows that begin alike become one tree: each unique token passes through the model once, forward and backward.

Axes: T trees, U unique tokens of a tree (padded), P sampled positions over all rows.
Example: rows (1, 2, 3) and (1, 2, 4) -> tokens (1, 2, 3, 4), depths (0, 1, 2, 2); 4 sees 1, 2 and itself, not 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from practicum.learning.batches import Row


@dataclass(frozen=True)
class Tree:
    """The unique tokens of several rows, each row a path from the root."""

    rows: tuple[Row, ...]
    tokens_U: NDArray[np.int64]
    depths_U: NDArray[np.int64]
    "Position of each token in its row: the same for all rows that share it."
    sees_UU: NDArray[np.bool_]
    "True where a token (first axis) sees another: its ancestors and itself."
    paths: tuple[NDArray[np.int64], ...]
    "For each row the index of its tokens in the tree, shape (L,)."


def tree_of(rows: Sequence[Row]) -> Tree:
    """One tree of rows in sorted order, where each shares with the one before all that it shares with any before."""
    rows = sorted(rows, key=lambda row: row.tokens)
    tokens: list[int] = []
    depths: list[int] = []
    paths: list[NDArray[np.int64]] = []
    before: tuple[int, ...] = ()
    for row in rows:
        shared = common_prefix(before, row.tokens)
        fresh = np.arange(len(tokens), len(tokens) + len(row.tokens) - shared)
        paths.append(np.concatenate([paths[-1][:shared], fresh]) if paths else fresh)
        tokens += row.tokens[shared:]
        depths += range(shared, len(row.tokens))
        before = row.tokens
    sees_UU = np.zeros((len(tokens), len(tokens)), dtype=bool)
    for path in paths:
        sees_UU[np.ix_(path, path)] |= np.tri(len(path), dtype=bool)
    return Tree(tuple(rows), np.array(tokens), np.array(depths), sees_UU, tuple(paths))


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many first tokens two rows share."""
    length = min(len(a), len(b))
    return next((n for n in range(length) if a[n] != b[n]), length)


def trees_of(rows: Sequence[Row]) -> list[Tree]:
    """A tree for each set of rows of one group; rows of no group stand alone."""
    ordered = sorted(rows, key=lambda row: row.group)
    trees: list[Tree] = []
    for name, found in groupby(ordered, key=lambda row: row.group):
        members = list(found)
        trees += [tree_of(members)] if name else [tree_of([row]) for row in members]
    return trees


def micro_batches(trees: Sequence[Tree], budget: int) -> Iterator[list[Tree]]:
    """Trees of similar size together, each batch at most `budget` padded tokens (a larger tree goes alone).

    Every tree comes exactly once; the split changes no gradient, since sums are divided by global counts.
    """
    batch: list[Tree] = []
    for tree in sorted(trees, key=lambda tree: -len(tree.tokens_U)):
        if batch and (len(batch) + 1) * len(batch[0].tokens_U) > budget:
            yield batch
            batch = []
        batch.append(tree)
    if batch:
        yield batch
