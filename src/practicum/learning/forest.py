"""Rows that begin alike become one tree: each unique token passes through the model once, forward and backward.

Axes: U unique tokens of a tree, L tokens of a row.
Example: rows (1, 2, 3) and (1, 2, 4) -> tokens (1, 2, 3, 4), depths (0, 1, 2, 2); 4 sees 1, 2 and itself, not 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from practicum.learning.batches import Row

AGAIN = 1 / 3
"What it costs to compute a tree's layers again on the way back, as a share of a pass forward and backward."
LEANER = 12
"So many times the tokens fit where layers are computed again and only what goes in between them is kept."


@dataclass(frozen=True)
class Tree:
    """The unique tokens of several rows, each row a path from the root; descendants follow their ancestor directly.

    Example: rows (1, 2, 3) and (1, 2, 4) -> ends (4, 4, 3, 4): what descends from the token 3 ends with itself.
    """

    rows: tuple[Row, ...]
    tokens_U: NDArray[np.int64]
    depths_U: NDArray[np.int64]
    "Position of each token in its row: the same for all rows that share it."
    ends_U: NDArray[np.int64]
    "Where in the tree the descendants of each token end: those before it, from the token itself on, see the token."
    paths: tuple[NDArray[np.int64], ...]
    "For each row the index of its tokens in the tree, shape (L,)."
    recomputed: bool = False
    "Its layers are computed again on the way back: it is too large to keep what they compute."

    def __len__(self) -> int:
        return len(self.tokens_U)


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
    ends_U = np.arange(1, len(tokens) + 1)
    for path in paths:
        ends_U[path] = path[-1] + 1  # rows are in order: the last one that a token stands in reaches farthest
    return Tree(tuple(rows), np.array(tokens), np.array(depths), ends_U, tuple(paths))


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


def micro_batches(trees: Sequence[Tree], budget: int, kept: int = 0) -> Iterator[list[Tree]]:
    """Trees that pass together, at most `budget` unique tokens; one that is larger passes alone.

    Of up to `kept` tokens, if that is more, a tree passes as it is; see `parts_of` for one that is larger. Every row
    comes exactly once; the split changes no gradient, since sums are divided by global counts.
    """
    batch: list[Tree] = []
    parts = [part for tree in trees for part in parts_of(tree, max(budget, kept))]
    for part in sorted(parts, key=len, reverse=True):
        if batch and sum(map(len, batch)) + len(part) > budget:
            yield batch
            batch = []
        batch.append(part)
    if batch:
        yield batch


def parts_of(tree: Tree, budget: int) -> list[Tree]:
    """The tree if it fits; else what costs less: parts that fit, each with the path that they share, or recomputation.

    What is recomputed is cut, too, beyond `LEANER` times the budget. A single row is never cut.
    """
    if len(tree) <= budget:
        return [tree]
    parts = cut(tree, budget)
    if max(map(len, parts)) <= budget and sum(map(len, parts)) <= (1 + AGAIN) * len(tree):
        return parts
    return [replace(part, recomputed=len(part) > budget) for part in cut(tree, LEANER * budget)]


def cut(tree: Tree, budget: int) -> list[Tree]:
    """Trees of neighbouring rows, each of at most `budget` unique tokens, or of a single row."""
    parts: list[list[Row]] = []
    size, before = budget, np.zeros(0, dtype=np.int64)
    for row, path in zip(tree.rows, tree.paths, strict=True):
        fresh = len(path) - np.isin(path, before, assume_unique=True).sum()
        if size + fresh > budget:
            parts.append([])
            size, fresh = 0, len(path)
        parts[-1].append(row)
        size, before = size + fresh, path
    return [tree_of(part) for part in parts]
