"""Which tokens each context knows, and in which blocks of the store their keys and values lie. No torch here.

Axes: S contexts, L positions of a context, T tokens of a prompt, P blocks of the store.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]

BLOCK = 64
"Positions of a block: a context wastes half of one on average, and a smaller one takes longer per position."
GROWTH = 64
"Blocks that the store grows by."
WORTH_WAITING = 32
"A request waits for a prefix that another context is computing now if that saves more tokens than this."
REMEMBERED = 4
"For each context that can be computed at once, so many are known in all."


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request goes.

    Example: Placement(context=4, source=0, reused=199, known=199) begins with 199 positions of context 0.
    """

    context: int
    source: int
    "Context whose first `reused` positions are taken; equal to `context` when it holds them itself."
    reused: int
    "Positions that need no computing, at most T - 1: the last token of a prompt is always computed."
    known: int
    "First tokens that were computed before, `reused` or more: what goes beyond these is computed again."


class Contexts:
    """Contexts of `length_S` known tokens, of which the first `kept_S` have keys and values in `blocks_S`.

    Full blocks are shared by all contexts that begin alike; one that is not full belongs to one context. When there is
    no room, the contexts that have been idle longest lose their blocks, and are computed again if they are needed.

    Example:
        contexts = Contexts(busy=64, context_length=8192, blocks=1000)
        placement = contexts.place(tokens_T)                 # None: wait
        copies = contexts.take(placement, tokens_T)          # blocks to copy before the next pass; None: no room
        contexts.grow(placement.context, len(tokens_T))      # False: no room
    """

    def __init__(self, busy: int, context_length: int, blocks: int) -> None:
        count = REMEMBERED * busy
        self.most_busy = busy
        self.tokens_SL = np.zeros((count, context_length), np.int32)
        self.length_S = np.zeros(count, np.int64)
        self.kept_S = np.zeros(count, np.int64)
        self.busy_S = np.zeros(count, bool)
        self.released_S = np.zeros(count, np.int64)
        "Rises with each release: the smallest belongs to the context that has been idle longest."
        self.blocks_S: list[list[int]] = [[] for _ in range(count)]
        self.users_P = np.zeros(blocks, np.int64)
        "Contexts that a block belongs to."
        self.free: list[int] = []
        "A heap: the blocks in use stay close together."
        self.touched = 1
        "Blocks that were ever in use; the first belongs to nobody: tokens that only fill a pass are written there."
        self._releases = 0

    def place(self, tokens_T: Tokens) -> Placement | None:
        """Where a prompt goes and the longest prefix it can take over; None when it had better wait."""
        if self.busy_S.sum() >= self.most_busy:
            return None
        idle_S = ~self.busy_S
        known_S = np.minimum(self._common_prefix(tokens_T), len(tokens_T) - 1)
        ready_S = np.minimum(known_S, self.kept_S)
        reused = int(ready_S.max())
        before = int(np.minimum(known_S, np.where(self.busy_S, self.kept_S, self.length_S)).max())
        coming_S = self.busy_S & (self.length_S - self.kept_S > 1)
        if (known_S[coming_S] > reused + WORTH_WAITING).any():
            return None
        # A context that holds nothing beyond the prefix loses nothing when it goes on: the next turn of an episode.
        continues_S = idle_S & (ready_S == reused) & (self.kept_S <= reused + 1) & (self.kept_S > 0)
        if continues_S.any():
            context = int(continues_S.argmax())
            return Placement(context, context, reused, before)
        candidates = np.flatnonzero(idle_S)
        order = np.lexsort((self.released_S[candidates], self.kept_S[candidates] > 0))
        context = int(candidates[order[0]])
        source = context if ready_S[context] == reused else int(ready_S.argmax())
        return Placement(context, source, reused, before)

    def take(self, placement: Placement, tokens_T: Tokens) -> list[tuple[int, int]] | None:
        """Give a context to a prompt; blocks to copy, as (from, to). None, and nothing changed, where there is no room.

        A block that is not full, or whose end is to be written anew, is copied unless nobody else uses it.
        """
        context, source, reused = placement.context, placement.source, placement.reused
        whole, rest = divmod(reused, BLOCK)
        taken = self.blocks_S[source][: whole + bool(rest)]
        self.users_P[taken] += 1  # so that making room does not take them away
        self.busy_S[context] = True  # nor this one
        copies: list[tuple[int, int]] = []
        alone = 2 if source == context else 1  # itself before and itself now
        if rest and (source != context or self.users_P[taken[-1]] > alone):
            block = self._free_block()
            if block is None:
                self._give_back(taken)
                self.busy_S[context] = False
                return None
            self.users_P[block] = 1
            copies.append((taken[-1], block))
            self._give_back(taken[-1:])
            taken[-1] = block
        self._give_back(self.blocks_S[context])
        self.blocks_S[context] = taken
        self.tokens_SL[context, : len(tokens_T)] = tokens_T
        self.length_S[context], self.kept_S[context] = len(tokens_T), reused
        return copies

    def grow(self, context: int, length: int) -> bool:
        """Blocks for the first `length` positions of a context; False where there is no room."""
        blocks = self.blocks_S[context]
        while len(blocks) * BLOCK < length:
            block = self._free_block()
            if block is None:
                return False
            self.users_P[block] = 1
            blocks.append(block)
        return True

    def append(self, context: int, token: int) -> None:
        """One more known token, without keys and values yet."""
        self.tokens_SL[context, self.length_S[context]] = token
        self.length_S[context] += 1

    def release(self, context: int) -> None:
        """The request is done; what was computed stays for whoever continues it."""
        self._releases += 1
        self.released_S[context], self.busy_S[context] = self._releases, False
        self.length_S[context] = self.kept_S[context]

    def drop(self, context: int) -> None:
        """Take the blocks of a context that is no longer busy; what it knew is remembered until another needs it."""
        self.busy_S[context] = False
        self._give_back(self.blocks_S[context])
        self.blocks_S[context], self.kept_S[context] = [], 0

    def pending(self, context: int) -> int:
        """Known tokens that have no keys and values yet."""
        return int(self.length_S[context] - self.kept_S[context])

    def forget(self) -> None:
        """All keys and values are void: every context is empty, as at the beginning."""
        for context in range(len(self.blocks_S)):
            self.drop(context)
        self.length_S[:], self.released_S[:], self._releases = 0, 0, 0

    def _give_back(self, blocks: list[int]) -> None:
        for block in blocks:
            self.users_P[block] -= 1
            if not self.users_P[block]:
                heapq.heappush(self.free, block)

    def _free_block(self) -> int | None:
        """The first free block; the store grows rather than lose what was idle for a short while."""
        while not self.free:
            idle = np.flatnonzero(~self.busy_S & (self.kept_S > 0))
            busy = {block for context in np.flatnonzero(self.busy_S) for block in self.blocks_S[context]}
            grows = self.touched < len(self.users_P) and 2 * (self.touched - len(busy)) <= self.touched
            if grows or (self.touched < len(self.users_P) and not len(idle)):
                fresh = range(self.touched, min(self.touched + GROWTH, len(self.users_P)))
                self.free += fresh
                heapq.heapify(self.free)
                self.touched = fresh.stop
            elif len(idle):
                self.drop(int(idle[self.released_S[idle].argmin()]))
            else:
                return None
        return heapq.heappop(self.free)

    def _common_prefix(self, tokens_T: Tokens) -> NDArray[np.int64]:
        length = len(tokens_T)
        same_ST = (self.tokens_SL[:, :length] == tokens_T) & (np.arange(length) < self.length_S[:, None])
        return np.where(same_ST.all(axis=1), length, same_ST.argmin(axis=1))
