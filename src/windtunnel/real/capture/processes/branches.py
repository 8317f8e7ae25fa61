"""Whether what a line of a script reads decides a branch: by the names that it comes to, wherever in the file."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from windtunnel.real.capture.processes.conditions import tree_of

_EXCHANGES = ("reduce", "gather", "broadcast", "scatter")  # in names of what exchanges, whoever wraps it
_AGREEMENTS = ("broadcast", "object")  # in names of those by which ranks come to hold the same
_CLOCKS = ("time.time", "time.perf_counter", "time", "perf_counter")


def branches_on(path: str, line: int) -> bool:
    """Whether what is read at a line stands in a test, or a test takes what is made of it."""
    return _follow(path, line).is_tested


def clocks_that_decide(paths: Sequence[str]) -> list[tuple[str, int]]:
    """(path, line) of each look at a clock on which a branch hangs, and that no exchange is given."""
    exchanges = _exchanging(paths, _EXCHANGES)
    places = []
    for path in paths:
        tree = tree_of(path)
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, ast.Call) and not node.args and ast.unparse(node.func) in _CLOCKS:
                flow = _follow(path, node.lineno, (ast.If, ast.While), exchanges)  # `a if late else b`: a number
                if flow.is_tested and not flow.is_exchanged:
                    places.append((path, node.lineno))
    return places


def unagreed(paths: Sequence[str], places: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Those (path, line) of which nothing that is made there is broadcast to all ranks, or exchanged as an object."""
    exchanges = _exchanging(paths, _AGREEMENTS)
    return [(path, line) for path, line in places if not _follow(path, line, exchanges=exchanges).is_exchanged]


def _exchanging(paths: Sequence[str], words: Sequence[str]) -> Callable[[str], bool]:
    """Whether what is called by a name exchanges: by its words, or as a function of these files that calls such."""
    wrappers = {
        function.name
        for path in paths
        for function in ast.walk(tree_of(path) or ast.Module([], []))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and any(word in _called(call) for word in words)
    }
    return lambda name: name in wrappers or any(word in name for word in words)


@dataclass(frozen=True)
class _Flow:
    """What becomes of a value: what it is assigned to, what a function returns, what a function is given."""

    is_tested: bool = False
    is_exchanged: bool = False  # a collective takes it


def _follow(
    path: str,
    line: int,
    branches: tuple[type[ast.If | ast.While | ast.IfExp], ...] = (ast.If, ast.While, ast.IfExp),
    exchanges: Callable[[str], bool] = lambda name: False,
) -> _Flow:
    tree = tree_of(path)
    if tree is None:
        return _Flow()
    nodes = list(ast.walk(tree))
    tests: list[ast.expr] = [node.test for node in nodes if isinstance(node, branches)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    returned = [
        (one.name, node.value)
        for one in functions
        for node in ast.walk(one)
        if isinstance(node, ast.Return) and node.value is not None
    ]
    tests += [value for _, value in returned if isinstance(value, ast.Compare | ast.BoolOp)]
    given: list[tuple[str, ast.expr]] = []  # parameter, and what it is given
    exchanged: list[ast.expr] = []
    parameters = {of.name: [arg.arg for arg in of.args.args if arg.arg not in ("self", "cls")] for of in functions}
    for node in nodes:
        if isinstance(node, ast.Call):
            given += zip(parameters.get(_called(node), ()), node.args, strict=False)
            if exchanges(_called(node)):
                exchanged += node.args
    assigned = [(name, node.value) for node in nodes for name in _named_by(node) if node.value is not None]  # type: ignore[attr-defined]
    flows = [*assigned, *given, *returned]
    names = _made_of(flows, line)
    tested = any(_is_at(test, line) or _mentions(test, names) for test in tests)
    # What is assigned, or filled in place, where a test holds hangs on it: a flag that is exchanged behind the branch.
    for branch in nodes:
        parts = (
            [part for statement in branch.body for part in ast.walk(statement)] if isinstance(branch, ast.If) else []
        )
        if not any(isinstance(part, ast.Call) and exchanges(_called(part)) for part in parts):
            flows += [(name, branch.test) for part in parts for name in (*_named_by(part), *_filled_by(part))]  # type: ignore[attr-defined]
    names = _made_of(flows, line)
    return _Flow(tested, any(_is_at(value, line) or _mentions(value, names) for value in exchanged))


def _made_of(flows: Sequence[tuple[str, ast.expr]], line: int) -> set[str]:
    """Names that come to hold what is made at a line, by what flows into them."""
    names = {name for name, value in flows if _is_at(value, line)}
    while more := {name for name, value in flows if name not in names and _mentions(value, names)}:
        names |= more
    return names


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _is_at(node: ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _named_by(node: ast.AST) -> list[str]:
    """Names that a statement assigns to."""
    if not isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
        return []
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]


def _filled_by(node: ast.AST) -> list[str]:
    """The name of a tensor that a call fills in place, as `flag.fill_(1)` does."""
    function = node.func if isinstance(node, ast.Call) else None
    if not isinstance(function, ast.Attribute) or not function.attr.endswith("_"):
        return []
    return [function.value.id] if isinstance(function.value, ast.Name) else []


def _mentions(node: ast.AST, names: set[str]) -> bool:
    """Whether a name stands in an expression, be it of a variable or of what is called."""
    return any(
        (isinstance(part, ast.Name) and part.id in names) or (isinstance(part, ast.Call) and _called(part) in names)
        for part in ast.walk(node)
    )
