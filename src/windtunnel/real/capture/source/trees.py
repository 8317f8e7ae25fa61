"""A script's files, parsed once each, with all nodes of a file in one list: what is below a node is a stretch of it."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

Function = tuple[str, int]  # name and first line; a module's is ("<module>", 1)
_SHARED = (ast.expr_context, ast.operator, ast.cmpop, ast.boolop, ast.unaryop)  # one object stands in many places
_HOLDING: dict[type[ast.AST], tuple[str, ...]] = {  # fields that may hold nodes, of those that most nodes are
    **{ast.Name: (), ast.Constant: (), ast.alias: (), ast.Attribute: ("value",), ast.arg: ("annotation",)},
    **{ast.keyword: ("value",), ast.Call: ("func", "args", "keywords"), ast.Subscript: ("value", "slice")},
}


@cache
def tree_of(path: str) -> ast.Module | None:
    """A file of Python, parsed; None where it is none."""
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8", errors="replace"))
    except (OSError, SyntaxError, ValueError):
        return None
    nodes: list[ast.AST] = []
    pending: list[tuple[ast.AST, int]] = [(tree, -1)]
    while pending:
        node, first = pending.pop()
        if first >= 0:
            node.stretch = nodes, first, len(nodes)  # type: ignore[attr-defined]
            continue
        first = len(nodes)
        nodes.append(node)
        below: list[tuple[ast.AST, int]] = []
        for name in _HOLDING.get(type(node), node._fields):
            part = getattr(node, name, None)
            if type(part) is list:
                below += [(of, -1) for of in part if isinstance(of, ast.AST) and not isinstance(of, _SHARED)]
            elif isinstance(part, ast.AST) and not isinstance(part, _SHARED):
                below.append((part, -1))
        if below:
            pending.append((node, first))
            pending += reversed(below)
        else:
            node.stretch = nodes, first, first + 1  # type: ignore[attr-defined]
    return tree


def nodes_of(path: str) -> list[ast.AST]:
    """All nodes of a file; none where it is not Python."""
    tree = tree_of(path)
    return [] if tree is None else parts_of(tree)


def parts_of(node: ast.AST) -> list[ast.AST]:
    """A node of a `tree_of` and all below it, in the order of the text; not the signs of what is reckoned."""
    nodes, first, end = node.stretch  # type: ignore[attr-defined]
    return nodes[first:end]  # type: ignore[no-any-return]


def index_of(node: ast.AST) -> int:
    """Where a node of a `tree_of` stands in `nodes_of`."""
    return node.stretch[1]  # type: ignore[attr-defined, no-any-return]


@cache
def functions_of(path: str) -> list[Function]:
    """In which function each of `nodes_of` stands; a function's own node stands in it."""
    nodes = nodes_of(path)
    functions = [("<module>", 1)] * len(nodes)
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            line = node.decorator_list[0].lineno if node.decorator_list else node.lineno
            first, count = index_of(node), len(parts_of(node))
            functions[first : first + count] = [(node.name, line)] * count
    return functions


@cache
def calls_of(path: str) -> list[tuple[Function, ast.Call]]:
    """All calls of a file, and the function that each stands in."""
    pairs = zip(functions_of(path), nodes_of(path), strict=True)
    return [(function, node) for function, node in pairs if isinstance(node, ast.Call)]
