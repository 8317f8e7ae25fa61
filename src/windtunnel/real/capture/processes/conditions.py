"""What the source of a script says about when things happen: `step % 4 == 0`, `i == 5`, `rank == 37`.

A capture runs a few steps on a few ranks. Its source names steps and ranks that are special; so those are run too,
where that is cheap, and what was not run is said. Nothing is executed here but names, attributes and arithmetic.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import gcd, lcm
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import CodeType


MOST_STEPS = 64  # that a capture goes on for by itself
MOST_RANKS = 6  # that a source names and that are run for it
MOST_UNNAMED, LEAST_UNNAMED = 2, 8  # of them where nothing says that they are ranks
_PLAIN = (ast.Name, ast.Attribute, ast.Constant, ast.BinOp, ast.Load, ast.operator)
_DISTRIBUTED = ("dist", "torch.distributed", "distributed", "c10d")
_GATES = ("print", "log", "info", "debug", "warning", "set_description", "format", "write", "append", "update")


@dataclass(frozen=True)
class Condition:
    """`left % modulus` or `left == value` in a test, at a line of a function."""

    line: int
    function: tuple[str, int]  # name and first line; a module's is ("<module>", 1)
    text: str
    left: CodeType = field(compare=False, repr=False)  # compiled expressions
    right: CodeType = field(compare=False, repr=False)
    is_modulus: bool = True


@cache
def _tree(path: str) -> ast.Module | None:
    try:
        return ast.parse(Path(path).read_text(encoding="utf-8", errors="replace"))
    except (OSError, SyntaxError, ValueError):
        return None


@cache
def conditions_of(path: str) -> tuple[Condition, ...]:
    """Tests of a file on which more than printing hangs."""
    tree = _tree(path)
    found: list[Condition] = []
    if tree is not None:
        for function, node in _statements(tree, ("<module>", 1)):
            if isinstance(node, ast.If | ast.IfExp) and not _only_says(node):
                found += _conditions(node.test, function)
    return tuple(found)


def _statements(node: ast.AST, function: tuple[str, int]) -> Iterator[tuple[tuple[str, int], ast.AST]]:
    for child in ast.iter_child_nodes(node):
        inside = function
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            first = child.decorator_list[0].lineno if child.decorator_list else child.lineno
            inside = (child.name, first)
        yield inside, child
        yield from _statements(child, inside)


def _only_says(node: ast.If | ast.IfExp) -> bool:
    """Whether all that a branch calls is printing and keeping count."""
    bodies = [*node.body, *node.orelse] if isinstance(node, ast.If) else [node.body]
    calls = [call for one in bodies for call in ast.walk(one) if isinstance(call, ast.Call)]
    names = [call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "") for call in calls]
    leaves = any(isinstance(part, ast.Break | ast.Continue | ast.Return) for one in bodies for part in ast.walk(one))
    return any(name in _GATES for name in names) and not leaves and not any(_is_telling(name) for name in names)


def _is_telling(name: str) -> bool:
    """Whether a name may be of a call that exchanges or trains."""
    return any(
        word in name for word in ("reduce", "gather", "scatter", "barrier", "step", "sync", "save", "eval", "send")
    )


def _conditions(test: ast.expr, function: tuple[str, int]) -> list[Condition]:
    found: list[tuple[ast.expr, ast.expr, bool, ast.expr]] = []
    for node in ast.walk(test):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            found.append((node.left, node.right, True, node))
        elif isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq):
            found.append((node.left, node.comparators[0], False, node))
    return [
        Condition(node.lineno, function, ast.unparse(node), _compiled(left), _compiled(right), modulus)
        for left, right, modulus, node in found
        if all(isinstance(part, _PLAIN) for side in (left, right) for part in ast.walk(side))
        and not (isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod))
    ]


def _compiled(node: ast.expr) -> CodeType:
    return compile(ast.Expression(node), "<condition>", "eval")


@dataclass
class Seen:
    """Values of one condition, once a step."""

    file: str
    condition: Condition
    lefts: list[int] = field(default_factory=list)
    right: int = 0

    @property
    def words(self) -> str:
        """For a person."""
        return f"{self.file}:{self.condition.line}: `{self.condition.text}`"

    def every(self) -> int:
        """How many steps lie between two at which it holds; 0 where it is not known, 1 where it says nothing."""
        strides = {after - before for before, after in zip(self.lefts, self.lefts[1:], strict=False)}
        if len(strides) != 1 or not self.condition.is_modulus or self.right <= 1:
            return 0 if self.condition.is_modulus and self.right > 1 else 1
        stride = strides.pop()
        return abs(self.right) // gcd(abs(self.right), abs(stride)) if stride else 1

    def steps_until(self) -> int:
        """How many more steps it takes until `left == right` has been passed; 0 for never."""
        if self.condition.is_modulus or len(self.lefts) < 2:
            return 0
        stride = self.lefts[-1] - self.lefts[-2]
        left = self.right - self.lefts[-1]
        return left // stride + 1 if stride > 0 and left >= 0 else 0


class Loop:
    """Watches the conditions of the functions that are being run when a step ends."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, Condition], Seen] = {}

    def look(self, frame: FrameType | None, name_of: Callable[[str], str]) -> None:
        """A step has ended in this frame. `name_of` gives a file's short name, "" for what is no script's."""
        while frame is not None:
            code = frame.f_code
            name = name_of(code.co_filename)
            if name:
                here = ("<module>", 1) if code.co_name == "<module>" else (code.co_name, code.co_firstlineno)
                for one in conditions_of(code.co_filename):
                    if one.function == here:
                        self._take(name, one, frame)
            frame = frame.f_back

    def _take(self, name: str, condition: Condition, frame: FrameType) -> None:
        try:
            left, right = (eval(side, frame.f_globals, frame.f_locals) for side in (condition.left, condition.right))
        except Exception:  # a name that is not there yet, or whatever an attribute does
            return
        if any(isinstance(value, bool) or not isinstance(value, int) for value in (left, right)):
            return
        seen = self._seen.setdefault((name, condition), Seen(name, condition))
        seen.lefts.append(left)
        seen.right = right

    def period(self) -> int:
        """Steps after which all conditions that were met repeat; of those that are not too far apart."""
        return lcm(*(every for one in self._seen.values() if 1 < (every := one.every()) <= MOST_STEPS)) or 1

    def steps_more(self, done: int) -> int:
        """Steps that are still to be run for every condition to have held once."""
        most = MOST_STEPS - done
        until = [more for one in self._seen.values() if 0 < (more := one.steps_until()) <= most]
        return max(until, default=0)

    def unseen(self, steps: int) -> list[str]:
        """What hangs on conditions that did not hold in so many steps."""
        found = []
        for one in self._seen.values():
            every, more = one.every(), one.steps_until()
            if every > steps:
                found.append(f"{one.words} holds every {every:,} steps, and {steps} were seen")
            elif more > 0:
                found.append(f"{one.words} holds in {more:,} steps, and {steps} were seen")
        return found


def ranks_named(paths: Sequence[str], world_size: int) -> list[int]:
    """Ranks that a source compares something with: `rank == 37`, `local_rank % 64 < 5`. The likeliest first.

    Where nothing is called a rank (`r != 37`), a few numbers that something is equal to.
    """
    sure: dict[int, None] = {}
    others: dict[int, None] = {}
    for path in paths:
        tree = _tree(path)
        for node in ast.walk(tree) if tree is not None else ():
            if not isinstance(node, ast.Compare):
                continue
            sides = [node.left, *node.comparators]
            numbers = [n for side in sides for n in _numbers(side) if 0 <= n < world_size]
            is_equal = isinstance(node.ops[0], ast.Eq | ast.NotEq | ast.In | ast.NotIn)
            if "rank" in " ".join(ast.unparse(side) for side in sides).lower():
                near = numbers if is_equal else [one for n in numbers for one in (n, n - 1)]
                sure |= dict.fromkeys(one for one in near if 0 < one < world_size)
            elif is_equal:
                others |= dict.fromkeys(n for n in numbers if n >= LEAST_UNNAMED)
    unnamed = [one for one in others if one not in sure][:MOST_UNNAMED]
    return [*sure, *unnamed][:MOST_RANKS]


def _numbers(node: ast.expr) -> list[int]:
    parts = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    return [p.value for p in parts if isinstance(p, ast.Constant) and type(p.value) is int]


def calls_not_reached(paths: Mapping[str, str], seen: set[str], names: Sequence[str]) -> list[str]:
    """Lines of the script that call one of `names` and were not come to: "train.py:44 (all_reduce)"."""
    found: list[tuple[str, int, str]] = []
    for path, name in paths.items():
        tree = _tree(path)
        for node in ast.walk(tree) if tree is not None else ():
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr in names and ast.unparse(node.func.value) in _DISTRIBUTED:
                lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                if not any(f"{name}:{line}" in seen for line in lines):
                    found.append((name, node.lineno, node.func.attr))
    return [f"{name}:{line} ({call})" for name, line, call in sorted(found)]


def branches_on(path: str, line: int) -> bool:
    """Whether what is read at a line decides a branch: it stands in a test, or a test takes what it is assigned to."""
    tree = _tree(path)
    if tree is None:
        return False
    tests = [node.test for node in ast.walk(tree) if isinstance(node, ast.If | ast.While | ast.IfExp)]
    if any(test.lineno <= line <= (test.end_lineno or test.lineno) for test in tests):
        return True
    assigned = {
        part.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign)
        and node.lineno <= line <= (node.end_lineno or 0)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for part in ast.walk(target)
        if isinstance(part, ast.Name)
    }
    return any(isinstance(part, ast.Name) and part.id in assigned for test in tests for part in ast.walk(test))
