"""Which names of a script count the rounds of a loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence


def is_counted(loop: ast.For | ast.While, left: ast.expr) -> bool:
    """Whether a name, or one and a number, grows by the same in each round: `for i in range(n)`, or `i += 1`."""
    if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Add | ast.Sub) and isinstance(left.right, ast.Constant):
        left = left.left
    name = ast.unparse(left)
    if isinstance(loop, ast.For):
        target, over = loop.target, loop.iter
        while isinstance(over, ast.Call) and over.args and ast.unparse(over.func).split(".")[-1] in ("tqdm", "iter"):
            over = over.args[0]
        called = ast.unparse(over.func).split(".")[-1] if isinstance(over, ast.Call) else ""
        if called == "enumerate" and isinstance(target, ast.Tuple):
            target = target.elts[0]
        if called in ("range", "trange", "enumerate") and ast.unparse(target) == name:
            return True
    for statement in _always(loop.body):
        if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
            target, added = statement.target, statement.value
        elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.BinOp):
            is_sum = isinstance(statement.value.op, ast.Add) and ast.unparse(statement.value.left) == name
            target, added = statement.targets[0], statement.value.right if is_sum else statement.value
        else:
            if any(isinstance(part, ast.Continue) for part in ast.walk(statement)):
                return False
            continue
        if ast.unparse(target) == name and isinstance(added, ast.Constant) and type(added.value) is int:
            return added.value > 0
    return False


def _always(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that each round comes to."""
    for statement in body:
        if isinstance(statement, ast.With | ast.AsyncWith):
            yield from _always(statement.body)
        else:
            yield statement
