"""Sums as an agent writes them, worked out without running anything as a program."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable

from practicum.errors import ToolError

Number = int | float

OPERATIONS: dict[type, Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def value_of(expression: str) -> float:
    """Numbers, + - * / and brackets. Raises ToolError, worded for the model, for anything else.

    Example: value_of("3131.1 + 4777.75 + 367.38") -> 8276.23
    """
    try:
        return round(float(evaluated(ast.parse(expression.strip(), mode="eval").body)), 2)
    except ZeroDivisionError:
        raise ToolError(f"{expression!r} divides by zero") from None
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        raise ToolError(f"{expression!r} cannot be calculated; write numbers, + - * / and brackets") from None


def evaluated(node: ast.expr) -> Number:
    """The value of a parsed expression. Raises ValueError for what is no arithmetic."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -evaluated(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return evaluated(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATIONS:
            return OPERATIONS[type(op)](evaluated(left), evaluated(right))
    raise ValueError(f"{type(node).__name__} is no arithmetic")
