"""A script's files, parsed once each, with all nodes of a file in one list: what is below a node is a stretch of it."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


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
        pending.append((node, len(nodes)))
        nodes.append(node)
        pending += [(child, -1) for child in reversed([*ast.iter_child_nodes(node)])]
    return tree


def nodes_of(path: str) -> list[ast.AST]:
    """All nodes of a file; none where it is not Python."""
    tree = tree_of(path)
    return [] if tree is None else parts_of(tree)


def parts_of(node: ast.AST) -> list[ast.AST]:
    """A node of a `tree_of` and all below it, as `ast.walk` gives, in the order of the text."""
    nodes, first, end = node.stretch  # type: ignore[attr-defined]
    return nodes[first:end]  # type: ignore[no-any-return]
