"""What the source of a script says about when things happen: `step % 4 == 0`, `i == 5`, `rank == 37`.

A capture runs a few steps on a few ranks. Its source names steps and ranks that are special; so those are run too,
where that is cheap, and what was not run is said. Nothing is executed here but names, attributes and arithmetic.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from inspect import CO_OPTIMIZED
from math import gcd, lcm
from types import FrameType
from typing import TYPE_CHECKING

from windtunnel.real.capture.source.counters import is_counted
from windtunnel.real.capture.source.trees import Function, calls_of, functions_of, nodes_of, parts_of, tree_of

if TYPE_CHECKING:
    from types import CodeType


MOST_STEPS = 64  # that a capture goes on for by itself
MOST_RANKS = 6  # that a source names and that are run for it
MOST_UNNAMED, LEAST_UNNAMED = 2, 8  # of them where nothing says that they are ranks
_PLAIN = (ast.Name, ast.Attribute, ast.Constant, ast.BinOp, ast.IfExp, ast.Compare, ast.Load, ast.operator, ast.cmpop)
_WRAPPED = ("enumerate", "tqdm", "iter", "reversed")  # what goes round as often as its first argument
_DISTRIBUTED = ("dist", "torch.distributed", "distributed", "c10d")
_GATES = ("print", "log", "info", "debug", "warning", "set_description", "format", "write", "append", "update")


@dataclass(frozen=True)
class Condition:
    """`left % modulus`, `left == value` or `left >= value`, in a test or an index, at a line of a function."""

    line: int
    function: Function
    text: str
    left: CodeType = field(compare=False, repr=False)  # compiled expressions
    right: CodeType = field(compare=False, repr=False)
    is_modulus: bool = True


@cache
def conditions_of(path: str) -> tuple[Condition, ...]:
    """Tests of a file on which more than printing hangs, and what is returned or taken in turn (`sizes[i % 3]`)."""
    conditions: list[Condition] = []
    for function, node in _statements(path):
        if isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise):
            continue
        if isinstance(node, ast.If | ast.IfExp) and not _only_says(node):
            ends = isinstance(node, ast.If) and isinstance(node.body[-1], ast.Break | ast.Return | ast.Raise)
            conditions += _conditions(node.test, function, is_end=ends)
        elif isinstance(node, ast.Subscript):
            conditions += [condition for condition in _conditions(node.slice, function) if condition.is_modulus]
        elif isinstance(node, ast.Return) and node.value is not None:
            conditions += [condition for condition in _conditions(node.value, function) if condition.is_modulus]
    return tuple(conditions)


@dataclass(frozen=True)
class Round:
    """A `for` or `while` of a function; of a `for`, what it goes over."""

    line: int
    end: int
    text: str  # of the head
    over: CodeType | None = field(compare=False, repr=False)  # compiled; None where it is not plain
    target: str = field(compare=False, repr=False)

    def __contains__(self, line: int) -> bool:
        return self.line <= line <= self.end


@cache
def _rounds_of(path: str) -> dict[Function, list[Round]]:
    """Loops of a file by function, outer ones first."""
    rounds: dict[Function, list[Round]] = {}
    for function, node in _statements(path):
        if isinstance(node, ast.For | ast.While):
            over = node.iter if isinstance(node, ast.For) else None
            while isinstance(over, ast.Call) and over.args and ast.unparse(over.func).split(".")[-1] in _WRAPPED:
                over = over.args[0]
            head = f"for ... in {ast.unparse(node.iter)}" if isinstance(node, ast.For) else ast.unparse(node.test)
            parts = [over]
            if isinstance(over, ast.Call) and isinstance(over.func, ast.Name) and over.func.id == "range":
                parts = [*over.args]
            compiled = _compiled(over) if over is not None and all(_is_plain(part) for part in parts) else None
            last = node.body[-1].end_lineno or node.lineno
            target = ast.unparse(node.target) if isinstance(node, ast.For) else ""
            rounds.setdefault(function, []).append(Round(node.lineno, last, head, compiled, target))
    return rounds


@cache
def _ends_of(path: str) -> dict[tuple[Function, int], list[CodeType]]:
    """Counts at which a loop of a file is left, `if step >= most: break`, by its function and line."""
    ends: dict[tuple[Function, int], list[CodeType]] = {}
    loops = {node.lineno: node for node in nodes_of(path) if isinstance(node, ast.For | ast.While)}
    for function, node in _statements(path):
        if not isinstance(node, ast.If) or not isinstance(node.test, ast.Compare):
            continue
        left, right = node.test.left, node.test.comparators[0]
        is_count = isinstance(node.test.ops[0], ast.Eq | ast.GtE | ast.Gt) and not isinstance(left, ast.Constant)
        if isinstance(node.body[-1], ast.Break | ast.Return) and is_count and _is_plain(left) and _is_plain(right):
            around = [part for part in _rounds_of(path).get(function, ()) if node.lineno in part]
            for part in around[-1:] if isinstance(node.body[-1], ast.Break) else around:
                if is_counted(loops[part.line], left):
                    ends.setdefault((function, part.line), []).append(_compiled(right))
    return ends


@cache
def _leaves_of(path: str) -> dict[Function, list[tuple[Round, int, str]]]:
    """Where functions of a file leave rounds by tests or errors that no `Condition` is: innermost loop, line, what."""
    leaves: dict[Function, list[tuple[Round, int, str]]] = {}
    for function, node in _statements(path):
        if isinstance(node, ast.If | ast.ExceptHandler) and isinstance(node.body[-1], ast.Continue | ast.Break):
            test = node.test if isinstance(node, ast.If) else node.type
            if isinstance(node, ast.ExceptHandler) or not _conditions(node.test, function, is_end=True):
                text = f"{'if' if isinstance(node, ast.If) else 'except'} {ast.unparse(test) if test else ''}"
                around = [part for part in _rounds_of(path).get(function, ()) if node.lineno in part]
                leaves.setdefault(function, []).extend((loop, node.lineno, text) for loop in around[-1:])
    return leaves


@cache
def _calls_of(path: str) -> dict[Function, list[tuple[int, str]]]:
    """What each function of a file calls, by name: (line, last part of the name)."""
    calls: dict[Function, list[tuple[int, str]]] = {}
    for function, node in calls_of(path):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        calls.setdefault(function, []).append((node.lineno, name))
    return calls


def _is_plain(node: ast.AST | None) -> bool:
    """Whether evaluating it does nothing but look up names and attributes, reckon, and take lengths."""
    if isinstance(node, ast.Call):
        is_length = isinstance(node.func, ast.Name) and node.func.id == "len" and not node.keywords
        return is_length and all(_is_plain(part) for part in node.args)
    return isinstance(node, _PLAIN) and all(_is_plain(part) for part in ast.iter_child_nodes(node))


def _statements(path: str) -> Iterator[tuple[Function, ast.AST]]:
    return zip(functions_of(path), nodes_of(path), strict=True)


def _only_says(node: ast.If | ast.IfExp) -> bool:
    """Whether all that a branch calls is printing and keeping count."""
    bodies = [*node.body, *node.orelse] if isinstance(node, ast.If) else [node.body]
    parts = [part for body in bodies for part in parts_of(body)]
    calls = [call for call in parts if isinstance(call, ast.Call)]
    names = [call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "") for call in calls]
    leaves = any(isinstance(part, (ast.Break, ast.Continue, ast.Return)) for part in parts)
    return any(name in _GATES for name in names) and not leaves and not any(_is_telling(name) for name in names)


def _is_telling(name: str) -> bool:
    """Whether a name may be of a call that exchanges or trains."""
    return any(
        word in name for word in ("reduce", "gather", "scatter", "barrier", "step", "sync", "save", "eval", "send")
    )


def _conditions(test: ast.expr, function: Function, *, is_end: bool = False) -> list[Condition]:
    """`is_end`: what hangs on it leaves the loop, so that `left >= right` is the end of the training."""
    comparisons: list[tuple[ast.expr, ast.expr, bool, ast.expr]] = []
    if not any(isinstance(part, (ast.BinOp, ast.Compare)) for part in parts_of(test)):
        return []
    for node in ast.walk(test):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            comparisons.append((node.left, node.right, True, node))
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq if is_end else ast.Eq | ast.GtE):
            comparisons.append((node.left, node.comparators[0], False, node))
    return [
        Condition(node.lineno, function, ast.unparse(node), _compiled(left), _compiled(right), modulus)
        for left, right, modulus, node in comparisons
        if _is_plain(left)
        and _is_plain(right)
        and not isinstance(left, ast.Constant)
        and not (isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod))
    ]


def _compiled(node: ast.expr) -> CodeType:
    return compile(ast.Expression(node), "<condition>", "eval")


@dataclass
class ConditionValues:
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
        if not self.condition.is_modulus and (fallen := self._fallen()):
            rest = self.lefts[fallen:]
            stride = rest[1] - rest[0] if len(rest) > 1 else self.lefts[1] - self.lefts[0]
            return (self.lefts[fallen - 1] - rest[0]) // stride + 1 if stride > 0 else 1
        strides = {after - before for before, after in zip(self.lefts, self.lefts[1:], strict=False)}
        if len(strides) != 1 or not self.condition.is_modulus or self.right <= 1:
            return 0 if self.condition.is_modulus and self.right > 1 else 1
        stride = strides.pop()
        return abs(self.right) // gcd(abs(self.right), abs(stride)) if stride else 1

    def _fallen(self) -> int:
        """The step at which a counter began anew; 0: at none."""
        pairs = enumerate(zip(self.lefts, self.lefts[1:], strict=False), 1)
        return next((at for at, (before, after) in pairs if after < before), 0)

    def steps_until(self) -> int:
        """How many more steps it takes until `left == right` has been passed; 0 for never, or when it has been."""
        if self.condition.is_modulus or len(self.lefts) < 2 or self._fallen():
            return 0
        stride = self.lefts[-1] - self.lefts[-2]
        left = self.right - self.lefts[-1]
        return left // stride + 1 if stride > 0 and left >= 0 else 0


class Loop:
    """Watches the conditions of the functions that are being run when a step ends, and the loops that they are in."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, Condition], ConditionValues] = {}
        self._words: dict[tuple[str, Condition], set[object]] = {}  # values that are compared and are no numbers
        self._rounds: dict[tuple[str, Round], int] = {}  # inner ones, and how often they go round; 0: not known
        self._called: set[str] = set()  # names of what the training's loop calls
        self._places: dict[tuple[str, int, str], object] = {}  # of loops: the round that each was in
        self.leaves: dict[str, None] = {}  # where a round may end in a way that is not known
        self.lengths: dict[tuple[str, int, str], int] = {}  # of loops by (file, line, head): most rounds

    def look(self, frame: FrameType | None, name_of: Callable[[str], str], *, conditions: bool = True) -> None:
        """A step has ended in this frame. `name_of` gives a file's short name, "" for what is no script's.

        `conditions`: they are looked at as well as the loops.
        """
        inside: list[tuple[str, Round, int]] = []  # the innermost first
        called: list[str] = []
        places: dict[tuple[str, int, str], object] = {}  # of loops, the innermost first: the round that each is in
        while frame is not None:
            code = frame.f_code
            name = name_of(code.co_filename)
            if name:
                here = ("<module>", 1) if code.co_name == "<module>" else (code.co_name, code.co_firstlineno)
                for condition in conditions_of(code.co_filename) if conditions else ():
                    if condition.function == here:
                        self._take(name, condition, frame)
                rounds = [loop for loop in _rounds_of(code.co_filename).get(here, ()) if frame.f_lineno in loop]
                inside += [(name, loop, _length(loop, frame)) for loop in reversed(rounds)]
                for part in reversed(rounds):
                    value = frame.f_locals.get(part.target)
                    places[name, part.line, part.text] = value if type(value) is int else object()
                    if length := _length(part, frame):
                        ends = _ends_of(code.co_filename).get((here, part.line), ())
                        counts = [count for end in ends if (count := _count(end, frame)) > 0]
                        self.lengths[name, part.line, part.text] = min([length, *counts])
                for loop, line, text in _leaves_of(code.co_filename).get(here, ()) if rounds else ():
                    if loop == rounds[-1]:
                        self.leaves[f"{name}:{line}: `{text.strip()}`"] = None
                calls = _calls_of(code.co_filename).get(here, ())
                called += [call for line, call in calls if not rounds or rounds[0].line <= line <= rounds[0].end]
                if rounds:
                    self._called.update(called)
                _let_go(frame)
            frame = frame.f_back
        self._leave_out_parts_of_steps(places)
        for name, part, length in inside[:-1]:  # the outermost is the training
            self._rounds[name, part] = length

    def _leave_out_parts_of_steps(self, places: dict[tuple[str, int, str], object]) -> None:
        """A loop that is in the same round whenever a step ends, while one around it goes on, lies within a step."""
        stays = [key for key, value in places.items() if self._places.get(key) == value]
        moved = [at for at, key in enumerate(places) if key in self._places and key not in stays]
        for at, key in enumerate(places):
            if key in stays and moved and at < moved[-1]:
                self.lengths.pop(key, None)
        self._places = places

    def _take(self, name: str, condition: Condition, frame: FrameType) -> None:
        try:
            left, right = (eval(side, frame.f_globals, frame.f_locals) for side in (condition.left, condition.right))
        except Exception:  # a name that is not there yet, or whatever an attribute does
            return
        if isinstance(left, str | bool | None) and isinstance(right, str | bool | None):
            self._words.setdefault((name, condition), set()).add(left)
        if any(isinstance(value, bool) or not isinstance(value, int) for value in (left, right)):
            return
        seen = self._seen.setdefault((name, condition), ConditionValues(name, condition))
        seen.lefts.append(left)
        seen.right = right

    def period(self) -> int:
        """Steps after which all conditions that were met repeat; of those that are not too far apart."""
        return lcm(*(every for watch in self._seen.values() if 1 < (every := watch.every()) <= MOST_STEPS)) or 1

    def steps_more(self, done: int) -> int:
        """Steps that are still to be run for every condition to have held once."""
        most = MOST_STEPS - done
        until = [more for watch in self._seen.values() if 0 < (more := watch.steps_until()) <= most]
        return max(until, default=0)

    def rounds(self) -> int:
        """Steps of the longest inner loop that is not too long, if each round is a step."""
        return max((length for length in self._rounds.values() if length <= MOST_STEPS), default=0)

    def changes(self) -> bool:
        """Whether a condition compares words (`turn == "both"`) that were not always the same."""
        return any(len(values) > 1 for values in self._words.values())

    def not_met(self, paths: Mapping[str, str]) -> list[str]:
        """Conditions with a modulus in what the loop calls, in files (path -> short name): no step ended in them."""
        functions = {(name, condition.function) for name, condition in self._seen}
        calls: dict[str, set[str]] = {}
        for path in paths:
            for (caller, _), called in _calls_of(path).items():
                calls.setdefault(caller, set()).update(name for _, name in called)
        reached, ahead = set(self._called), list(self._called)
        while ahead:
            fresh = calls.get(ahead.pop(), set()) - reached
            reached |= fresh
            ahead += fresh
        return [
            f"{name}:{condition.line}: `{condition.text}`"
            for path, name in paths.items()
            for condition in conditions_of(path)
            if condition.is_modulus and condition.function[0] in reached and (name, condition.function) not in functions
        ]

    def unseen(self, steps: int, compared: int = 0) -> list[str]:
        """What hangs on conditions that did not hold, and on loops that did not end, in so many steps."""
        texts = []
        for watch in self._seen.values():
            every, more = watch.every(), watch.steps_until()
            if every > steps:
                texts.append(f"{watch.words} holds every {every:,} steps, and {steps} were seen")
            elif more > 0:
                texts.append(f"{watch.words} holds in {more:,} steps, and {steps} were seen")
        for (name, part), length in self._rounds.items():
            if steps <= length or not length:
                goes = f"goes round {length:,} times" if length else "ends some time"
                texts.append(
                    f"{name}:{part.line}: `{part.text}` {goes}, and {steps} steps were seen: nothing behind it"
                )
        says = f"leaves a round: whether it does on some ranks alone was not seen behind step {compared or steps:,}"
        return [*texts, *(f"{words} {says}" for words in self.leaves)]


def _let_go(frame: FrameType) -> None:
    """Python up to 3.12 keeps what `f_locals` gave, and so the script's tensors of this step, until it is asked again.

    That would be memory of the rank that looks. What the script itself has taken with `locals()` stays.
    """
    snapshot = frame.f_locals
    known_to = 3  # the frame, this function, and the call that counts
    if frame.f_code.co_flags & CO_OPTIMIZED and type(snapshot) is dict and sys.getrefcount(snapshot) <= known_to:
        snapshot.clear()


def _length(part: Round, frame: FrameType) -> int:
    """How often a loop goes round; 0 where that is not known."""
    if part.over is None:
        return 0
    try:
        return len(eval(part.over, frame.f_globals, frame.f_locals))
    except Exception:  # it has no length, or a name is gone
        return 0


def _count(code: CodeType, frame: FrameType) -> int:
    """A whole number that an expression gives; 0 for anything else."""
    try:
        value = eval(code, frame.f_globals, frame.f_locals)
    except Exception:  # a name is not there yet, or whatever an attribute does
        return 0
    return value if type(value) is int else 0


def ranks_named(paths: Sequence[str], world_size: int) -> list[int]:
    """Ranks that a source compares something with: `rank == 37`, `local_rank % 64 < 5`. The likeliest first.

    Where nothing is called a rank (`r != 37`), a few numbers that something is equal to.
    """
    sure: dict[int, None] = {}
    others: dict[int, None] = {}
    for path in paths:
        tree = tree_of(path)
        for node in ast.walk(tree) if tree is not None else ():
            if not isinstance(node, ast.Compare):
                continue
            sides = [node.left, *node.comparators]
            numbers = [n for side in sides for n in _numbers(side) if 0 <= n < world_size]
            is_equal = isinstance(node.ops[0], ast.Eq | ast.NotEq | ast.In | ast.NotIn)
            if "rank" in " ".join(ast.unparse(side) for side in sides).lower():
                near = numbers if is_equal else [number for n in numbers for number in (n, n - 1)]
                sure |= dict.fromkeys(number for number in near if 0 < number < world_size)
            elif is_equal:
                others |= dict.fromkeys(n for n in numbers if n >= LEAST_UNNAMED)
    unnamed = [number for number in others if number not in sure][:MOST_UNNAMED]
    return [*sure, *unnamed][:MOST_RANKS]


def _numbers(node: ast.expr) -> list[int]:
    parts = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    return [p.value for p in parts if isinstance(p, ast.Constant) and type(p.value) is int]


def calls_not_reached(paths: Mapping[str, str], seen: set[str], names: Sequence[str]) -> list[str]:
    """Lines of the script that call one of `names` and were not come to: "train.py:44 (all_reduce)"."""
    calls: list[tuple[str, int, str]] = []
    for path, name in paths.items():
        tree = tree_of(path)
        for node in ast.walk(tree) if tree is not None else ():
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr in names and ast.unparse(node.func.value) in _DISTRIBUTED:
                lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                if not any(f"{name}:{line}" in seen for line in lines):
                    calls.append((name, node.lineno, node.func.attr))
    return [f"{name}:{line} ({call})" for name, line, call in sorted(calls)]
