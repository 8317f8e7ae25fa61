"""Whether what a line of a script reads decides a branch: by the names that it comes to, wherever in the file."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from windtunnel.real.capture.source.trees import calls_of, index_of, nodes_of, parts_of, tree_of

_EXCHANGES = ("reduce", "gather", "broadcast", "scatter")  # in names of what exchanges, whoever wraps it
_AGREEMENTS = ("broadcast", "object")  # in names of those by which ranks come to hold the same
_MEETINGS = (*_EXCHANGES, "barrier", "all_to_all", "send", "recv", "backward")  # in names of what ranks wait in
_CLOCKS = ("time", "perf_counter", "monotonic")
_DATES = ("datetime.now", "datetime.utcnow", "datetime.today")  # with a time zone or without
_BRANCHES = (ast.If, ast.While, ast.IfExp)
_LEAVES = (ast.Break, ast.Continue, ast.Return, ast.Raise)


def branches_on(path: str, line: int) -> bool:
    """Whether what is read at a line stands in a test, or a test takes what is made of it."""
    return _source(path, _Exchanges()).flow(line).is_tested


def deciding_places(
    paths: Sequence[str], places: Sequence[tuple[str, int]], branches: tuple[type[ast.AST], ...] = _BRANCHES
) -> list[tuple[str, int]]:
    """Those (path, line) on which a branch hangs that no exchange comes before: `if agree(loss > 9)` does not."""
    exchanges = _Exchanges.of((*paths, *dict.fromkeys(path for path, _ in places if path not in paths)), _EXCHANGES)
    sources = {path: _source(path, exchanges) for path, _ in places}
    return [(path, line) for path, line in places if sources[path].flow(line, branches).is_tested]


def deciding_clocks(paths: Sequence[str]) -> list[tuple[str, int]]:
    """(path, line) of each look at a clock on which a branch hangs, and that no exchange is given."""
    names = {prefix + name + unit for prefix in ("", "time.") for name in _CLOCKS for unit in ("", "_ns")}
    ends = {name.rpartition(".")[2] for name in (*names, *_DATES)}
    places = [
        (path, node.lineno)
        for path in paths
        for _, node in calls_of(path)
        if _called(node) in ends  # first: to write an expression out takes longer
        and ((not node.args and ast.unparse(node.func) in names) or ast.unparse(node.func).endswith(_DATES))
    ]
    return deciding_places(paths, places, (ast.If, ast.While))  # `a if late else b`: a number


def places_never_exchanged(paths: Sequence[str], places: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Those (path, line) of which nothing that is made there is broadcast to all ranks, or exchanged as an object."""
    exchanges = _Exchanges.of(tuple(paths), _AGREEMENTS)
    sources = {path: _source(path, exchanges) for path, _ in places}
    return [(path, line) for path, line in places if not sources[path].flow(line).is_exchanged]


def is_joined(paths: Sequence[str]) -> bool:
    """Whether a source allows for ranks with fewer rounds: `with Join([model]):`."""
    trees = (tree_of(path) for path in paths)
    nodes = (node for tree in trees if tree is not None for node in parts_of(tree) if isinstance(node, ast.withitem))
    return any("join" in ast.unparse(node.context_expr).lower() for node in nodes)


def calls_beside_join(files: Mapping[str, str], loop: int, names: Sequence[str]) -> set[str]:
    """Lines that exchange, `train.py:41`, in every round of the loop at this line within `with Join([model]):`; none
    where the script has Joinables of its own.
    """
    lines: set[str] = set()
    for path, short in files.items():
        nodes = list(ast.walk(tree)) if (tree := tree_of(path)) is not None else []
        if any(
            "Joinable" in ast.unparse(base) for node in nodes if isinstance(node, ast.ClassDef) for base in node.bases
        ):
            return set()
        joins = [
            node
            for node in nodes
            if isinstance(node, ast.With) and any(_is_join(item.context_expr) for item in node.items)
        ]
        loops = [
            node
            for join in joins
            for node in ast.walk(join)
            if isinstance(node, ast.For | ast.While) and node.lineno == loop
        ]
        lines |= {
            f"{short}:{call.lineno}"
            for node in loops
            for call in _in_each_round(node)
            if isinstance(call, ast.Call) and _called(call) in names
        }
    return lines


def _in_each_round(node: ast.AST) -> Iterator[ast.AST]:
    """Parts of a loop that hang on no test."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.If | ast.IfExp | ast.BoolOp):
            yield child
            yield from _in_each_round(child)


def _is_join(node: ast.expr) -> bool:
    """Whether who is through is waited for: not where all end with the first (`throw_on_early_termination`)."""
    if not isinstance(node, ast.Call) or _called(node) not in ("Join", "join") or "path" in ast.unparse(node.func):
        return False
    return all(given.arg != "throw_on_early_termination" for given in node.keywords)


@dataclass(frozen=True)
class _Exchanges:
    """What exchanges, by its name: by words of it, or as a function of these files that calls such."""

    words: Sequence[str] = ()
    wrappers: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()  # names that stand in what is exchanged, anywhere
    meeting: frozenset[str] = frozenset()  # functions of these files in which ranks wait, however far down

    @classmethod
    @cache
    def of(cls, paths: tuple[str, ...], words: Sequence[str]) -> _Exchanges:
        """Those of some files."""
        calls = [
            (function.name, _called(call))
            for path in paths
            for function in nodes_of(path)
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            for call in parts_of(function)
            if isinstance(call, ast.Call)
        ]
        wrappers = {function for function, called in calls if any(word in called for word in words)}
        meeting = {function for function, called in calls if any(word in called for word in _MEETINGS)}
        while more := {function for function, called in calls if called in meeting} - meeting:
            meeting |= more
        exchanges = cls(words, frozenset(wrappers))
        names = {
            name
            for path in paths
            for _, node in calls_of(path)
            for part in exchanges.arguments(node)
            for name in _names_in(part)
        }
        return cls(words, frozenset(wrappers), frozenset(names), frozenset(meeting))

    def is_meeting(self, node: ast.AST) -> bool:
        """Whether ranks wait for each other in a call."""
        if not isinstance(node, ast.Call):
            return False
        name = _called(node)
        return name in self.meeting or any(word in name for word in _MEETINGS) or bool(self.arguments(node))

    def arguments(self, node: ast.AST) -> list[ast.expr]:
        """What a call gives to an exchange."""
        if not isinstance(node, ast.Call):
            return []
        name = _called(node)
        exchanges = name in self.wrappers or any(word in name for word in self.words)
        return [*node.args, *(of.value for of in node.keywords)] if exchanges else []


@dataclass(frozen=True)
class _Value:
    """An expression: the names that stand in it, but not in what it gives to an exchange, and those that do there."""

    node: ast.expr
    names: frozenset[str]
    parts: tuple[ast.expr, ...]
    exchanged: frozenset[str] = field(default_factory=frozenset)

    def is_at(self, line: int) -> bool:
        """Whether what is read at a line stands here, outside of what is exchanged."""
        return _is_at(self.node, line) and not self.is_given_at(line)

    def is_given_at(self, line: int) -> bool:
        """Whether what is read at a line goes into an exchange here; to read is to call."""
        return any(_is_at(part, line) and any(isinstance(of, ast.Call) for of in parts_of(part)) for part in self.parts)


@dataclass(frozen=True)
class _Place:
    """Where something stands: in which function (0: in none), and where in the file."""

    function: int
    at: tuple[int, int]

    def is_before(self, other: _Place) -> bool:
        """Whether it comes earlier in the same function."""
        return self.function == other.function and self.at < other.at


@dataclass(frozen=True)
class _Step:
    """A name comes to hold what an expression gives; None as its target: of a function that returns it."""

    name: str
    value: _Value
    source: _Place
    target: _Place | None


@dataclass(frozen=True)
class _Flow:
    """What becomes of a value: what it is assigned to, what a function returns, what a function is given.

    Behind an exchange it is no longer this rank's: what an exchange gives, what it fills in place, and what is made of
    these.
    """

    is_tested: bool = False  # a branch hangs on it, before an exchange
    is_exchanged: bool = False  # a collective takes it


class _Source:
    """A file: what flows where in it."""

    def __init__(self, path: str, exchanges: _Exchanges) -> None:
        self._exchanges = exchanges
        self._nodes = nodes_of(path)
        self._scopes = _scopes_of(path)
        functions = [node for node in self._nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        self._returned = [
            (function.name, self._value(node.value), self._scopes.place(node))
            for function in functions
            for node in parts_of(function)
            if isinstance(node, ast.Return) and node.value is not None
        ]
        parameters = {
            of.name: (of, [arg.arg for arg in of.args.args if arg.arg not in ("self", "cls")]) for of in functions
        }
        calls = [call for _, call in calls_of(path)]
        self._taken = [(part, self._scopes.place(call)) for call in calls for part in exchanges.arguments(call)]
        self._steps = [_Step(name, value, place, None) for name, value, place in self._returned]
        for node in self._nodes:
            for name in _named_by(node):
                if (assigned := node.value) is not None:  # type: ignore[attr-defined]
                    place = self._scopes.place(node)
                    self._steps.append(_Step(name, self._value(assigned), place, place))
            for name in _filled_by(node):
                place = self._scopes.place(node)
                self._steps.append(_Step(name, self._value(node), place, place))  # type: ignore[arg-type]
        for call in calls:
            if _called(call) in parameters:
                function, names = parameters[_called(call)]
                entry = _Place(id(function), (function.lineno, 0))
                for name, part in zip(names, call.args, strict=False):
                    self._steps.append(_Step(name, self._value(part), self._scopes.place(call), entry))
        # What is assigned, or filled in place, where a test holds hangs on it: a flag that is exchanged behind it.
        self._settings: dict[int, set[str]] = {}
        for node in self._nodes:
            if not isinstance(node, ast.If):
                continue
            if any(exchanges.is_meeting(part) for of in (*node.body, *node.orelse) for part in parts_of(of)):
                continue
            value, source = self._value(node.test), self._scopes.place(node)
            set_here = [(part, name) for of in node.body for part in parts_of(of) for name in _set_by(part)]
            self._settings[id(node)] = {name for _, name in set_here}
            self._steps += [_Step(name, value, source, self._scopes.place(part)) for part, name in set_here]
        self._flows = [(step.name, step.value) for step in self._steps]

    def flow(self, line: int, branches: tuple[type[ast.AST], ...] = _BRANCHES) -> _Flow:
        """Of what is read at a line."""
        names = _closure(self._flows, {name for name, value in self._flows if value.is_at(line)})
        filled = {name for part, _ in self._taken for name in _names_filled(part) if name in names}
        shared = {name for name, value in self._flows if value.is_given_at(line) or value.exchanged & names}
        agreed = _closure(self._flows, filled | shared)
        own = _OwnReads(self._scopes, names, agreed)
        own.follow(line, self._steps, self._taken)
        tests = [
            (node, self._value(node.test), self._scopes.place(node))  # type: ignore[attr-defined]
            for node in self._nodes
            if isinstance(node, branches)
        ]
        tested = [
            (value, place)
            for node, value, place in tests
            if not self._settings.get(id(node), set()) & agreed or _leaves(node)
        ]
        for name, value, place in self._returned:  # a test, wherever it is called from
            if isinstance(value.node, ast.Compare | ast.BoolOp) and name not in self._exchanges.names:
                tested.append((value, place))
        return _Flow(
            any(value.is_at(line) or own.reads_own(value, place) for value, place in tested),
            any(_is_at(part, line) or _names_in(part) & names for part, _ in self._taken),
        )

    def _value(self, node: ast.expr) -> _Value:
        parts = tuple(part for call in parts_of(node) for part in self._exchanges.arguments(call))
        hidden = {id(of) for part in parts for of in parts_of(part)}
        exchanged = frozenset(name for part in parts for name in _names_in(part))
        return _Value(node, frozenset(_names_in(node, hidden)), parts, exchanged)


_source = cache(_Source)


class _Scopes:
    """Which function of a file each part of it stands in, and whose variable a name is there."""

    def __init__(self, nodes: Sequence[ast.AST]) -> None:
        self._functions = [0] * len(nodes)  # of each node
        self._around: dict[int, int] = {}
        self._bound: dict[int, set[str]] = {}
        for at, node in enumerate(nodes):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                inside = id(node)
                self._around[inside] = self._functions[at]
                parts = parts_of(node)
                self._functions[at + 1 : at + len(parts)] = [inside] * (len(parts) - 1)
                shared = {name for of in parts if isinstance(of, (ast.Global, ast.Nonlocal)) for name in of.names}
                stored = {of.id for of in parts if isinstance(of, ast.Name) and isinstance(of.ctx, ast.Store)}
                given = {of.arg for of in parts_of(node.args) if isinstance(of, ast.arg)}
                self._bound[inside] = (given | stored) - shared

    def place(self, node: ast.AST) -> _Place:
        """Of a statement, or an expression."""
        return _Place(self._functions[index_of(node)], (node.lineno, node.col_offset))  # type: ignore[attr-defined]

    def owner(self, name: str, function: int) -> int:
        """The function whose variable a name is, where it stands; 0: of the file, as attributes are."""
        while function and name not in self._bound[function]:
            function = self._around[function]
        return function


@cache
def _scopes_of(path: str) -> _Scopes:
    return _Scopes(nodes_of(path))


class _OwnReads:
    """Where a name still holds what is this rank's own: an exchange counts from its line on, in its function."""

    def __init__(self, scopes: _Scopes, names: set[str], agreed: set[str]) -> None:
        self._scopes, self._names, self._agreed = scopes, names, agreed
        self._own: set[_Step] = set()
        self._agreements: dict[str, list[_Place]] = {}

    def follow(self, line: int, steps: Sequence[_Step], exchanges: Sequence[tuple[ast.expr, _Place]]) -> None:
        """What is read at a line, until nothing more comes to hold it."""
        steps = [step for step in steps if step.name in self._names]
        while True:
            self._agreements = {}
            for part, place in exchanges:
                for name in _names_filled(part):
                    self._agreements.setdefault(name, []).append(place)
            for step in steps:
                if step not in self._own and (
                    step.value.is_given_at(line) or (step.value.exchanged | step.value.names) & self._agreed
                ):
                    self._agreements.setdefault(step.name, []).append(step.target or step.source)
            more = {step for step in steps if step.value.is_at(line) or self.reads_own(step.value, step.source)}
            if more <= self._own:
                return
            self._own |= more

    def reads_own(self, value: _Value, place: _Place) -> bool:
        """Whether an expression reads such a name."""
        return any(self._is_own(name, place) for name in value.names & self._names)

    def _is_own(self, name: str, place: _Place) -> bool:
        if name not in self._agreed:
            return True
        owner = self._scopes.owner(name, place.function)
        for of in self._agreements.get(name, ()):
            is_elsewhere = of.function != place.function and self._scopes.owner(name, of.function) == owner
            if is_elsewhere or of.is_before(place):
                return False
        return any(step.name == name and (step.target is None or step.target.is_before(place)) for step in self._own)


def _closure(flows: Sequence[tuple[str, _Value]], names: set[str]) -> set[str]:
    """Names that come to hold what these hold, past no exchange."""
    names = {*names}
    while more := {name for name, value in flows if name not in names and value.names & names}:
        names |= more
    return names


def _leaves(node: ast.AST) -> bool:
    return any(isinstance(part, _LEAVES) for part in parts_of(node))


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _is_at(node: ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _names_in(node: ast.AST, hidden: set[int] | frozenset[int] = frozenset()) -> set[str]:
    """Variables `x`, attributes `.x` of whatever object, and what is called, in an expression."""
    names: set[str] = set()
    for part in parts_of(node):
        if id(part) not in hidden:
            if isinstance(part, ast.Name):
                names.add(part.id)
            elif isinstance(part, ast.Attribute):
                names.add(f".{part.attr}")
            elif isinstance(part, ast.Call):
                names.add(_called(part))
    return names


def _names_filled(node: ast.AST) -> Iterator[str]:
    """Names whose tensor, or list, an expression is: `x`, `self.x`, `x[0]`, `[x]`."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield f".{node.attr}"
    elif isinstance(node, ast.Subscript | ast.Starred):
        yield from _names_filled(node.value)
    elif isinstance(node, ast.List | ast.Tuple):
        for part in node.elts:
            yield from _names_filled(part)


def _named_by(node: ast.AST) -> list[str]:
    """Names that a statement assigns to."""
    if not isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
        return []
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [name for target in targets for name in _names_filled(target)]


def _set_by(node: ast.AST) -> list[str]:
    return [*_named_by(node), *_filled_by(node)]


def _filled_by(node: ast.AST) -> list[str]:
    """The name of a tensor that a call fills in place, as `flag.fill_(1)` does."""
    function = node.func if isinstance(node, ast.Call) else None
    if not isinstance(function, ast.Attribute) or not function.attr.endswith("_"):
        return []
    return [*_names_filled(function.value)]
