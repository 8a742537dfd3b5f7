"""The stricter mode: rules of the benchmark's policy that its tools do not enforce, as refusals.

Not enforced is what no tool can see: the customer's yes before a write, the tone, when to hand over to a colleague.
"""

from __future__ import annotations

from collections.abc import Sequence

from practicum.errors import ToolError


class Policy:
    """What the agent has established in this conversation.

    Example:
        policy = Policy()
        policy.admit("omar_anderson_3203")        # found by email, or by name and zip code
        policy.check_owner("yusuf_rossi_9620")    # ToolError: one customer per conversation
    """

    def __init__(self) -> None:
        self.customer = ""
        "Who is being served; empty until found."
        self.looked_at: set[str] = set()
        "Orders whose status the agent has seen."

    def admit(self, user_id: str) -> None:
        """The first user found is the customer. Raises ToolError for a second one."""
        if self.customer and user_id != self.customer:
            raise ToolError(f"this conversation is with {self.customer}; another customer's requests are denied")
        self.customer = user_id

    def check_found(self) -> None:
        """Raise ToolError before a customer was found."""
        if not self.customer:
            raise ToolError("find the customer first, by email or by name and zip code")

    def check_owner(self, user_id: str) -> None:
        """Raise ToolError before a customer was found, and for what belongs to another one."""
        self.check_found()
        if user_id != self.customer:
            raise ToolError(f"this belongs to another customer than {self.customer}, so it is denied")

    def check_looked_at(self, order_id: str) -> None:
        """Raise ToolError for a write to an order whose status was not looked at."""
        if order_id not in self.looked_at:
            raise ToolError(f"look at {order_id} with get_order before changing it")

    @staticmethod
    def check_different(item_ids: Sequence[str], new_item_ids: Sequence[str]) -> None:
        """Raise ToolError where an item would be replaced by itself: the options must differ."""
        for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
            if item_id == new_item_id:
                raise ToolError(f"item {item_id} is to be replaced by itself; choose another variant")
