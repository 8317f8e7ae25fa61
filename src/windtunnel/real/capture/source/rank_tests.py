"""Tests of a source that hang on the rank, and what each gives on every rank of the world: `tp == 3 and dp < 20`.

A capture runs a few ranks. A test that none of them meets hides a program of its own; so a rank that meets it is run.
Names are followed through assignments, functions, attributes and what functions are given, back to what a rank is
read from: the environment, `get_rank`, a mesh; others are numbers that all ranks held alike. Nothing is executed. What
is not understood is left out, and what is understood wrongly costs a run: whether programs are equal is for the ranks
that ran to say.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations, pairwise, product
from math import prod
from types import FrameType, ModuleType
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from windtunnel.real.capture.source.trees import tree_of

MOST_TESTS = 24  # of a source
MOST_ITEMS = 24  # of what a comprehension runs over
MOST_EVALUATIONS = 100_000  # of parts of expressions, for all tests; beyond it none is understood
MOST_TEXT = 200  # characters of a test
MOST_PAIRS = 6  # that are told
Numbers: TypeAlias = NDArray[np.int64]  # one for each rank, or one for all
Value: TypeAlias = "Numbers | str | tuple[Value, ...] | None"  # None: not understood
Mesh = tuple[tuple[str, ...], tuple[int, ...]]

_OPERATORS: dict[type[ast.AST], np.ufunc] = {
    **{ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.FloorDiv: np.floor_divide, ast.Mod: np.mod},
    **{ast.Eq: np.equal, ast.NotEq: np.not_equal, ast.Lt: np.less, ast.LtE: np.less_equal},
    **{ast.Gt: np.greater, ast.GtE: np.greater_equal, ast.And: np.logical_and, ast.Or: np.logical_or},
    **{ast.Not: np.logical_not, ast.USub: np.negative},
}
_SPOKEN = {  # of names of which nothing else is known
    **{"rank": "RANK", ".rank": "RANK", "global_rank": "RANK", ".global_rank": "RANK", "world_size": "WORLD_SIZE"},
    **{"local_rank": "LOCAL_RANK", ".local_rank": "LOCAL_RANK"},
}
_FLAT = (np.ndarray, str)  # tuples can have parts without end: they are not compared
_BRANCHES = (ast.If, ast.IfExp, ast.While, ast.Assert)


@dataclass(frozen=True, eq=False)
class RankTest:
    """A test, and on which ranks it holds."""

    where: str  # "train.py:8"
    text: str
    holds: NDArray[np.bool_]


class World(NamedTuple):
    """What a rank can be read as. `meshes`: of the whole world, names and sizes of their dimensions. `numbers`: held by
    variables `x` and attributes `.x` of the script on every rank.
    """

    size: int
    local_size: int
    meshes: Sequence[Mesh] = ()
    numbers: Mapping[str, int] = {}

    def environment(self, name: Value) -> Value:
        """A variable that torchrun sets."""
        ranks, local = np.arange(self.size), self.local_size
        by_name = {
            **{"RANK": ranks, "LOCAL_RANK": ranks % local, "GROUP_RANK": ranks // local},
            **{"WORLD_SIZE": np.asarray(self.size), "LOCAL_WORLD_SIZE": np.asarray(local)},
        }
        return by_name.get(name) if isinstance(name, str) else None

    def coordinates(self) -> dict[str, Numbers]:
        """Along each dimension of the first mesh of the whole world, by name."""
        for names, sizes in self.meshes:
            if prod(sizes) == self.size:
                return dict(zip(names, np.unravel_index(np.arange(self.size), sizes), strict=False))
        return {}


def rank_tests(files: Mapping[str, str], world: World) -> tuple[list[RankTest], list[str]]:
    """Tests that are not alike on all ranks, each once, the first first; and those of a rank that are not understood.

    `files`: path -> short name.
    """
    sources = _Sources(list(files), world)
    tests: dict[bytes, RankTest] = {}
    missed: list[str] = []
    for path, name in files.items():
        for node, value in sources.tests(path):
            if value is None and any("rank" in _name_of(part).lstrip(".").split("_") for part in ast.walk(node)):
                missed.append(f"`{_text(node)}` ({name}:{node.lineno})")
            if isinstance(value, np.ndarray) and value.shape == (world.size,) and len(tests) < MOST_TESTS:
                holds = value.astype(bool)
                if holds.any() and not holds.all():
                    key = (holds != holds[0]).tobytes()
                    tests.setdefault(key, RankTest(f"{name}:{node.lineno}", _text(node), holds))
    return list(tests.values()), missed


def not_met(tests: Sequence[RankTest], ranks_run: Sequence[int]) -> list[str]:
    """What two tests give together on ranks of the world, and on none that ran; what most ranks have first."""
    unmet: list[tuple[int, str]] = []
    for one, other in combinations(tests, 2):
        for first, second in product((True, False), repeat=2):
            both = (one.holds == first) & (other.holds == second)
            if both.any() and not both[ranks_run].any():
                words = " and ".join(
                    f"{'' if is_held else 'not '}`{test.text}` ({test.where})"
                    for test, is_held in ((one, first), (other, second))
                )
                unmet.append((int(both.sum()), words))
    unmet.sort(key=lambda pair: -pair[0])
    texts = [f"no rank that ran has {words}: {count:,} ranks do" for count, words in unmet[:MOST_PAIRS]]
    more = len(unmet) - len(texts)
    return texts + [f"{more} more pairs of tests of the rank were met by no rank that ran"] * bool(more)


def numbers_held(frame: FrameType | None, is_own: Callable[[str], object]) -> dict[str, int]:
    """Numbers of a script's variables and of their attributes, in a frame and its callers; of names that have one."""
    values: dict[str, set[int]] = {}
    while frame is not None:
        scopes = (frame.f_globals, frame.f_locals) if is_own(frame.f_code.co_filename) else ()
        for name, value in [pair for scope in scopes for pair in scope.items()]:
            try:  # whatever the script's objects do when they are asked for attributes
                attributes = {} if isinstance(value, ModuleType) else dict(object.__getattribute__(value, "__dict__"))
            except AttributeError:
                attributes = {}
            for of, number in ((name, value), *((f".{of}", held) for of, held in attributes.items())):
                if type(number) is int and abs(number) < 2**63:
                    values.setdefault(of, set()).add(number)
        frame = frame.f_back
    return {name: numbers.pop() for name, numbers in values.items() if len(numbers) == 1}


class _Sources:
    """Files of a script, and what their names hold."""

    def __init__(self, paths: Sequence[str], world: World) -> None:
        self._world, self._evaluations = world, 0
        self._assigned: dict[tuple[str, str], list[tuple[ast.expr, str, int]]] = {}  # (file or "", name)
        self._returned: dict[str, list[tuple[ast.expr, str]]] = {}
        self._known: dict[tuple[str, str], Value] = {}
        self._candidates: dict[str, list[ast.expr]] = {}
        parameters: dict[str, list[str]] = {}
        calls: list[tuple[str, ast.Call]] = []
        for path in paths:
            candidates = self._candidates[path] = []
            for node in ast.walk(tree_of(path) or ast.Module([], [])):
                if isinstance(node, ast.FunctionDef):
                    ends = [part.value for part in node.body if isinstance(part, ast.Return) and part.value is not None]
                    self._returned.setdefault(node.name, []).extend((end, path) for end in ends)
                    parameters[node.name] = [arg.arg for arg in node.args.args if arg.arg not in ("self", "cls")]
                elif isinstance(node, ast.ClassDef):
                    parameters[node.name] = _fields(node)
                elif isinstance(node, ast.Call):
                    calls.append((path, node))
                elif isinstance(node, ast.Compare | ast.BoolOp):
                    candidates.append(node)
                elif isinstance(node, _BRANCHES):
                    candidates.append(node.test)
                elif isinstance(node, ast.For):  # not what another file calls by that name
                    self._assigned.setdefault((path, _name_of(node.target)), [])
                elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                        self._assign(target, node.value, path)
        for path, node in calls:
            names = parameters.get(_called(node), ())
            for name, value in [
                *zip(names, node.args, strict=False),
                *((of.arg or "", of.value) for of in node.keywords),
            ]:
                for parameter in {name, f".{name}"}.intersection(names):
                    self._put(parameter, value, path, -1)

    def _assign(self, target: ast.expr, value: ast.expr, path: str) -> None:
        if isinstance(target, ast.Tuple):
            for at, part in enumerate(target.elts):
                self._put(_name_of(part), value, path, at)
        else:
            self._put(_name_of(target), value, path, -1)

    def _put(self, name: str, value: ast.expr, path: str, at: int) -> None:
        for place in (path, ""):
            self._assigned.setdefault((place, name), []).append((value, path, at))

    def tests(self, path: str) -> Iterator[tuple[ast.expr, Value]]:
        """What branches of a file hang on, and comparisons: the largest parts that are understood; else None."""
        inner: set[int] = set()  # parts of what is understood
        for node in self._candidates[path]:  # the outer ones first
            if id(node) not in inner:
                value = self.value(node, path)
                inner.update([id(node)] if value is None else map(id, ast.walk(node)))
                if value is not None or isinstance(node, ast.Compare):
                    yield node, value

    def value(self, node: ast.AST, path: str) -> Value:
        """Of an expression in a file."""
        try:
            with np.errstate(all="ignore"):
                return self._value(node, path)
        except (TypeError, ValueError, ArithmeticError, LookupError, RecursionError):
            return None  # no arithmetic of numbers

    def _value(self, node: ast.AST, path: str) -> Value:
        self._evaluations += 1
        if self._evaluations > MOST_EVALUATIONS:
            return None
        match node:
            case ast.Constant(value=str() as text):
                return np.asarray(int(text), np.int64) if text.isdecimal() else text
            case ast.Constant(value=int() as number):
                return np.asarray(number, np.int64)
            case ast.Name() | ast.Attribute():
                return self._name(_name_of(node), path)
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                return _all([self._value(part, path) for part in parts])
            case ast.Call():
                return self._call(node, path)
            case ast.GeneratorExp() | ast.ListComp():
                return self._each(node, path)
            case ast.Subscript(value=of, slice=at):
                place = self._value(at, path)
                return self._world.environment(place) if _is_environment(of) else _item(self._value(of, path), place)
            case ast.BinOp(left=left, op=op, right=right):
                return _apply(op, [self._value(left, path), self._value(right, path)])
            case ast.UnaryOp(op=op, operand=operand):
                return _apply(op, [self._value(operand, path)])
            case ast.BoolOp(op=op, values=parts):
                return reduce(lambda one, other: _apply(op, [one, other]), [self._value(part, path) for part in parts])
            case ast.Compare():
                sides = [self._value(side, path) for side in (node.left, *node.comparators)]
                pairs = [_apply(op, [*pair]) for op, pair in zip(node.ops, pairwise(sides), strict=True)]
                return reduce(lambda one, other: _apply(ast.And(), [one, other]), pairs)
        return None

    def _each(self, node: ast.GeneratorExp | ast.ListComp, path: str) -> Value:
        """What an expression gives for each of a few things: `int(os.environ[name]) for name in ("RANK", ...)`."""
        generator, *others = node.generators
        nested = sum(isinstance(part, ast.GeneratorExp | ast.ListComp) for part in ast.walk(node.elt))
        if others or generator.ifs or nested > 1:  # more within each other would fill the memory
            return None
        over, key = self._value(generator.iter, path), (path, _name_of(generator.target))
        outer = {key: self._known[key]} if key in self._known else {}
        parts: list[Value] = []
        try:
            for item in over if isinstance(over, tuple) and len(over) <= MOST_ITEMS else ():
                self._known[key] = item
                parts.append(self._value(node.elt, path))
        finally:
            self._known.pop(key, None)
            self._known |= outer
        return _all(parts) if parts else None

    def _name(self, name: str, path: str) -> Value:
        """What it is assigned, where that is one thing; of several, the one that hangs on the rank."""
        key = (path if (path, name) in self._known or (path, name) in self._assigned else "", name)
        if key not in self._known:
            self._known[key] = None  # a name that is made of itself
            values: list[Value] = []
            for expression, where, at in self._assigned.get(key, ()):
                value = self.value(expression, where)
                values.append(_item(value, np.asarray(at)) if at >= 0 else value)
            known = [value for value in values if value is not None]
            by_rank = [value for value in known if isinstance(value, np.ndarray) and value.ndim]
            first, *others = by_rank or known or [None]
            is_one = all(
                other is first
                or (isinstance(first, _FLAT) and isinstance(other, _FLAT) and np.array_equal(first, other))
                for other in others
            )
            is_known = is_one and (by_rank or len(known) == len(values) > 0)
            number = self._world.numbers.get(name)
            otherwise = np.asarray(number) if number is not None else self._world.environment(_SPOKEN.get(name, ""))
            self._known[key] = first if is_known else otherwise
        return self._known[key]

    def _call(self, node: ast.Call, path: str) -> Value:
        name = _called(node)
        given = [self._value(part, path) for part in (*node.args, *(of.value for of in node.keywords))]
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        if name in ("int", "str") and len(given) == 1:
            return given[0]
        if name == "getenv" or (name == "get" and owner is not None and _is_environment(owner)):
            return self._world.environment(given[0])
        if name == "divmod":
            return _all([_apply(ast.FloorDiv(), given), _apply(ast.Mod(), given)])
        if name == "range" and isinstance(numbers := _all(given), tuple):
            over = range(*(_number(of) for of in numbers))
            return tuple(map(np.asarray, over)) if len(over) <= self._world.size else None
        if name in ("get_rank", "get_world_size") and not given:
            return self._world.environment("RANK" if name == "get_rank" else "WORLD_SIZE")
        if name in ("get_local_rank", "get_coordinate"):
            return self._on_mesh(name, owner, given)
        returned, key = self._returned.get(name, []), ("", f"{name}()")
        if len(returned) == 1 and key not in self._known:
            self._known[key] = None  # a function that calls itself
            self._known[key] = self._value(*returned[0])
        return self._known.get(key)

    def _on_mesh(self, name: str, mesh: ast.expr | None, given: Sequence[Value]) -> Value:
        along = self._world.coordinates()
        if name == "get_coordinate":
            return tuple(along.values()) or None
        if not given and isinstance(mesh, ast.Subscript) and isinstance(mesh.slice, ast.Constant):
            given = [str(mesh.slice.value)]
        dimension = given[0] if given else None
        return along.get(dimension) if isinstance(dimension, str) else _item(tuple(along.values()), dimension)


def _apply(op: ast.AST, parts: Sequence[Value]) -> Value:
    """What an operator makes of numbers. Raises TypeError where they are none."""
    if any(part is None for part in parts):
        return None
    first, second = parts[0], parts[-1]
    if isinstance(op, ast.In | ast.NotIn) and isinstance(second, tuple) and not isinstance(first, tuple):
        return np.asarray(np.isin(np.asarray(first), [_number(of) for of in second], invert=isinstance(op, ast.NotIn)))
    if type(op) not in _OPERATORS or any(isinstance(part, tuple) for part in parts):
        return None
    operator = _OPERATORS[type(op)]
    if isinstance(op, ast.FloorDiv | ast.Mod) and not np.all(np.asarray(second)):
        return None
    if isinstance(op, ast.Add | ast.Sub | ast.Mult) and np.any(
        abs(operator(*(np.asarray(part, float) for part in parts))) >= 2.0**63
    ):
        return None
    return np.asarray(operator(*parts))


def _all(parts: Sequence[Value]) -> Value:
    return None if any(part is None for part in parts) else tuple(parts)


def _number(value: Value) -> int:
    """One for all ranks. Raises TypeError."""
    if not isinstance(value, np.ndarray):
        raise TypeError(value)
    return int(value)


def _item(of: Value, at: Value) -> Value:
    return of[_number(at)] if isinstance(of, tuple) and at is not None else None


def _is_environment(node: ast.expr) -> bool:
    return _name_of(node) in (".environ", "environ")


def _fields(node: ast.ClassDef) -> list[str]:
    """What a class is made of: its constructor's parameters, or a dataclass's fields."""
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            return [arg.arg for arg in part.args.args[1:]]
    return [f".{_name_of(part.target)}" for part in node.body if isinstance(part, ast.AnnAssign)]


def _text(node: ast.expr) -> str:
    try:
        text = ast.unparse(node)
    except RecursionError:
        return "a test of too many parts to be written here"
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} ..."


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _name_of(node: ast.AST) -> str:
    """A variable `x`, an attribute `.x` of whatever object; "" of anything else."""
    return f".{node.attr}" if isinstance(node, ast.Attribute) else getattr(node, "id", "")
