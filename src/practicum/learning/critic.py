"""The critic: what the outcome is expected to be, before each sampled token.

Axes: P sampled positions over all rows, F distinct positions that those follow, D width of the model.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from practicum.learning.forest import Tree
from practicum.learning.trunk import Trunk


class Critic:
    """A language model with one number as its head, which says 0 until it has learned.

    Its trunk is a copy of the actor's: what learns there is its own here, what is frozen there (the base under an
    adapter) is shared. So it never stands on layers that move for another reason.

    Example: critic = Critic(model, autocast=False); critic.score(trees)  # tensor of P values
    """

    def __init__(self, model: Any, autocast: bool) -> None:
        frozen = {id(parameter): parameter for parameter in model.parameters() if not parameter.requires_grad}
        self.trunk = Trunk(copy.deepcopy(model, frozen), autocast)
        width = self.trunk.model.config.get_text_config().hidden_size
        self.head = torch.nn.Linear(width, 1, device=self.trunk.device)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    @property
    def trained(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that learn, by name; not the language head, which no value depends on."""
        unused = {id(parameter) for parameter in self.trunk.model.get_output_embeddings().parameters()}
        unused -= {id(parameter) for parameter in self.trunk.model.get_input_embeddings().parameters()}
        of_trunk = {name: p for name, p in self.trunk.trained.items() if id(p) not in unused}
        return of_trunk | {f"head.{name}": parameter for name, parameter in self.head.named_parameters()}

    def score(self, trees: Sequence[Tree]) -> Tensor:
        """Values before the sampled positions of all rows, tree by tree, row by row, shape (P,), with gradient."""
        hidden_FD, sampled = self.trunk.hidden(trees)
        values_F = self.head(hidden_FD.float())[:, 0]
        return values_F[self.trunk.tensor(sampled.ranks_P)]
