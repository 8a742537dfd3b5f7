"""A world of your own: a class with tools, and tasks that it can verify. Trains and tests a model in it."""

import practicum
from practicum import Task, ToolError, tool


class Shop:
    def reset(self, task):
        self.paid, self.refunds = dict(task.data["paid"]), {}

    @tool
    def refund(self, order_id: str, cents: int) -> str:
        """Refund `cents` of an order; at most what was paid."""
        if order_id not in self.paid:
            raise ToolError(f"there is no order {order_id}; open: {', '.join(self.paid)}")
        if cents > self.paid[order_id]:
            raise ToolError(f"{order_id} was paid with {self.paid[order_id]} cents, {cents} is more")
        self.refunds[order_id] = cents
        return "refunded"

    def verify(self, secret):
        return {"success": float(self.refunds == secret["refunds"])}


def task(n):
    order, cents = f"#W{n}", 500 + 10 * n
    data, secret = {"paid": {order: cents}}, {"refunds": {order: cents}}
    return Task(f"refund_{n}", f"Refund {order} in full, {cents} cents.", data=data, secret=secret)


folder, report = practicum.train("examples/quick.toml", tasks=[task(n) for n in range(20)], environment=Shop)

# The model of quick.toml is too small for this shop, and two steps are too few: expect 0 %.
for name, figures in report["test"].items():
    print(f"{name}: {figures['success']:.0%} of {figures['n_tasks']} tasks, endings {figures['endings']}")
print(f"everything is in {folder}")
