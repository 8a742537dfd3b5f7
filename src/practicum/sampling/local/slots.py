"""Who holds which row of the key/value store, and which tokens each row already knows. No torch here.

Axes: S slots, L positions of a slot, T tokens of a prompt.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]

WORTH_WAITING = 32
"A request waits for a prefix that another row is computing now if that saves more tokens than this."


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request goes: Placement(slot=4, source=0, reused=199) copies 199 positions of slot 0 into slot 4."""

    slot: int
    source: int
    "Slot whose first `reused` positions are to be copied; equal to `slot` when it already holds them."
    reused: int
    "Positions that need no computing, at most T - 1: the last token of a prompt is always computed."


class Slots:
    """The tokens in each slot: `length_S` of them are known, the first `kept_S` have keys and values.

    Example:
        slots = Slots(count=64, context_length=8192)
        placement = slots.place(tokens_T)            # None: wait
        slots.take(placement.slot, tokens_T, placement.reused)
    """

    def __init__(self, count: int, context_length: int) -> None:
        self.tokens_SL = np.zeros((count, context_length), np.int32)
        self.length_S = np.zeros(count, np.int64)
        self.kept_S = np.zeros(count, np.int64)
        self.busy_S = np.zeros(count, bool)
        self.released_S = np.zeros(count, np.int64)
        "Rises with each release: the smallest belongs to the slot that has been idle longest."
        self._releases = 0

    def place(self, tokens_T: Tokens) -> Placement | None:
        """The slot for a prompt and the longest prefix it can reuse; None when the prompt had better wait."""
        idle_S = ~self.busy_S
        if not idle_S.any():
            return None
        known_S = np.minimum(self._common_prefix(tokens_T), len(tokens_T) - 1)
        ready_S = np.minimum(known_S, self.kept_S)
        reused = int(ready_S.max())
        coming_S = self.busy_S & (self.length_S - self.kept_S > 1)
        if (known_S[coming_S] > reused + WORTH_WAITING).any():
            return None
        # A slot that holds nothing beyond the prefix loses nothing when it is taken over: the next turn of an episode.
        continues_S = idle_S & (ready_S == reused) & (self.kept_S <= reused + 1) & (self.kept_S > 0)
        if continues_S.any():
            slot = int(continues_S.argmax())
            return Placement(slot, slot, reused)
        candidates = np.flatnonzero(idle_S)
        order = np.lexsort((self.released_S[candidates], self.kept_S[candidates] > 0))
        slot = int(candidates[order[0]])
        source = slot if ready_S[slot] == reused else int(ready_S.argmax())
        return Placement(slot, source, reused)

    def take(self, slot: int, tokens_T: Tokens, reused: int) -> None:
        """Give the slot to a prompt of which `reused` tokens have keys and values already."""
        self.tokens_SL[slot, : len(tokens_T)] = tokens_T
        self.length_S[slot], self.kept_S[slot], self.busy_S[slot] = len(tokens_T), reused, True

    def append(self, slot: int, token: int) -> None:
        """One more known token, without keys and values yet."""
        self.tokens_SL[slot, self.length_S[slot]] = token
        self.length_S[slot] += 1

    def release(self, slot: int) -> None:
        """The request is done; what was computed stays for whoever continues it."""
        self._releases += 1
        self.released_S[slot], self.busy_S[slot], self.length_S[slot] = self._releases, False, self.kept_S[slot]

    def pending(self, slot: int) -> int:
        """Known tokens that have no keys and values yet."""
        return int(self.length_S[slot] - self.kept_S[slot])

    def forget(self) -> None:
        """Keys and values are void: busy slots will compute theirs again, idle ones are empty, as at the beginning."""
        self.kept_S[:] = 0
        self.length_S[~self.busy_S] = 0
        if not self.busy_S.any():
            self.released_S[:], self._releases = 0, 0

    def _common_prefix(self, tokens_T: Tokens) -> NDArray[np.int64]:
        length = len(tokens_T)
        same_ST = (self.tokens_SL[:, :length] == tokens_T) & (np.arange(length) < self.length_S[:, None])
        return np.where(same_ST.all(axis=1), length, same_ST.argmin(axis=1))
