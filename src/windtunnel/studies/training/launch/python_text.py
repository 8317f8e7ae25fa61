"""What a configuration in Python would set, read off its text: nothing of it is run.

Constants, names, calls of functions that stand in the file or in one that it imports and that lies beside it, and
assignments to attributes are followed. A call of anything else is an object of that name with its arguments. What
depends on more (loops, comprehensions, what the machine says) is `Unread`; an environment variable is its default.
"""

from __future__ import annotations

import ast
import operator
import string
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from windtunnel.errors import InputFileError
from windtunnel.files.bytes import read_text

GIVE = "give a recipe or a configuration in Python"
BYTES_MOST, STEPS_MOST, DEPTH_MOST, FILES_MOST, MAGNITUDE_MOST = 1 << 20, 100_000, 40, 40, 10**15
FOLLOWED = {"recipes", "perf_recipes"}  # in a module's name: what else is imported is a library, which is not read
PASSED_ON = {"nemo.collections.llm": "nemo.collections.llm.recipes"}  # a package that hands on the modules of another
MAKERS = ("Config", "Partial", "partial")  # of nemo_run and functools: of their first argument
NUMBERS = (int, float)
BINARY = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv, ast.Mod: operator.mod,
}  # fmt: skip
COMPARE: Mapping[type[ast.cmpop], Callable[..., bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
TEXT_METHODS = ("lower", "upper", "strip")
CASTS = {"int": int, "float": float, "str": str, "bool": bool}


@dataclass(frozen=True, slots=True)
class Unread:
    """A value that is not known here, as the file writes it."""

    text: str


@dataclass(slots=True)
class Made:
    """What a call makes: the name of what is called, and keywords and attributes as set last."""

    kind: str
    args: list[object] = field(default_factory=list)
    values: dict[str, object] = field(default_factory=dict)
    rests_on: str = ""  # a function that is imported and does not lie beside the file


class _ReturnError(Exception):  # a function has reached its `return`
    def __init__(self, value: object) -> None:
        self.value = value


@dataclass(slots=True)
class Budget:
    """How much is followed of one file, and what was taken for granted on the way."""

    steps: int = 0
    assumed: list[str] = field(default_factory=list)
    modules: dict[str, Module | None] = field(default_factory=dict)

    def spend(self, where: str) -> None:
        """Count a step. Raises InputFileError."""
        self.steps += 1
        if self.steps > STEPS_MOST:
            raise InputFileError(where, f"takes more than {STEPS_MOST:,} steps to follow", GIVE)


def parsed(text: str, where: str) -> ast.Module:
    """The tree of a Python file. Raises InputFileError."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputFileError(where, f"is no Python ({type(error).__name__})", GIVE) from None


class Module:
    """A file: its functions, its imports, and what its statements outside of functions set."""

    def __init__(self, tree: ast.Module, path: Path, place: Path, budget: Budget) -> None:
        self.tree, self.path, self.place, self.budget = tree, path, place, budget
        self.functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self.imports: dict[str, tuple[str, str]] = {}
        self.names: dict[str, object] = {}
        self.depth = 0
        with suppress(_ReturnError):  # a `raise` outside of functions
            self.run(tree.body, self.names)

    # ------------------------------------------------------------------------------------------------ statements

    def run(self, body: Sequence[ast.stmt], names: dict[str, object]) -> None:
        """Follow statements."""
        for node in body:
            self.budget.spend(str(self.path))
            self._statement(node, names)

    def _statement(self, node: ast.stmt, names: dict[str, object]) -> None:
        match node:
            case ast.ImportFrom(module=str(module), names=aliases, level=0):
                self.imports |= {alias.asname or alias.name: (module, alias.name) for alias in aliases}
            case ast.Assign(targets=targets, value=value):
                made = self.value(value, names)
                for target in targets:
                    self._set(target, made, names)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._set(target, self.value(value, names), names)
            case ast.AugAssign(target=target, op=op, value=value):
                self._set(target, self.value(ast.BinOp(_loaded(target), op, value), names), names)
            case ast.Expr(value=value):
                self.value(value, names)
            case ast.Return(value=value):
                raise _ReturnError(None if value is None else self.value(value, names))
            case ast.If(test=test, body=body, orelse=orelse):
                on = self.value(test, names)
                if isinstance(on, Unread):
                    self._forget([*body, *orelse], ast.unparse(test), names)
                else:
                    self.run(body if on else orelse, names)
            case ast.With(body=body) | ast.Try(body=body):
                self.run(body, names)
            case ast.For() | ast.While():
                self._forget(node.body, "a loop", names)
            case ast.Raise():
                raise _ReturnError(Unread(ast.unparse(node)))

    def _forget(self, body: Sequence[ast.stmt], why: str, names: dict[str, object]) -> None:
        """What statements set that may or may not be reached is not known."""
        for node in (inner for statement in body for inner in ast.walk(statement)):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._set(target, Unread(f"{ast.unparse(node.value)} if {why}"), names)

    def _set(self, target: ast.expr, value: object, names: dict[str, object]) -> None:
        match target:
            case ast.Name(id=name):
                names[name] = value
            case ast.Attribute(value=of, attr=name):
                owner = self.value(of, names)
                if isinstance(owner, Made):
                    owner.values[name] = value
            case ast.Subscript(value=of, slice=ast.Constant(value=key)):
                owner = self.value(of, names)
                if isinstance(owner, dict):
                    owner[key] = value
            case ast.Tuple(elts=elts) | ast.List(elts=elts):
                parts = value if isinstance(value, list) and len(value) == len(elts) else None
                for at, elt in enumerate(elts):
                    own = Made(f"{value.kind}[{at}]") if isinstance(value, Made) else Unread(ast.unparse(elt))
                    self._set(elt, own if parts is None else parts[at], names)

    # ----------------------------------------------------------------------------------------------- expressions

    def value(self, node: ast.expr, names: Mapping[str, object]) -> object:
        """What an expression is."""
        self.budget.spend(str(self.path))
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return names.get(name, self.names.get(name, Unread(name)))
            case ast.Attribute(value=of, attr=name):
                owner = self.value(of, names)
                return owner.values.get(name, Unread(ast.unparse(node))) if isinstance(owner, Made) else _unread(node)
            case ast.List(elts=elts) | ast.Tuple(elts=elts):
                return [self.value(elt, names) for elt in elts]
            case ast.Dict():
                return self._dictionary(node, names)
            case ast.Subscript(value=of, slice=key):
                return self._item(self.value(of, names), self.value(key, names), node)
            case ast.UnaryOp(op=op, operand=operand):
                own = self.value(operand, names)
                if isinstance(op, ast.Not):
                    return own if isinstance(own, Unread) else not own
                return -own if isinstance(op, ast.USub) and isinstance(own, NUMBERS) else _unread(node)
            case ast.BinOp(left=left, op=op, right=right):
                return self._sum(self.value(left, names), type(op), self.value(right, names), node)
            case ast.BoolOp(op=op, values=values):
                return self._both(isinstance(op, ast.And), values, names)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._compared(self.value(left, names), op, self.value(right, names), node)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                on = self.value(test, names)
                return _unread(node) if isinstance(on, Unread) else self.value(body if on else orelse, names)
            case ast.Call():
                return self._call(node, names)
        return _unread(node)

    def _dictionary(self, node: ast.Dict, names: Mapping[str, object]) -> object:
        pairs: dict[object, object] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            own = self.value(value, names)
            if key is not None:
                word = self.value(key, names)
                if not isinstance(word, str | int):
                    return _unread(node)
                pairs[word] = own
            elif isinstance(own, dict):
                pairs |= own
        return pairs

    def _item(self, owner: object, key: object, node: ast.expr) -> object:
        if isinstance(owner, dict) and isinstance(key, str | int):
            return owner.get(key, _unread(node))
        if isinstance(owner, list) and isinstance(key, int) and -len(owner) <= key < len(owner):
            return owner[key]
        return _unread(node)

    def _sum(self, left: object, op: type[ast.operator], right: object, node: ast.expr) -> object:
        if isinstance(left, NUMBERS) and isinstance(right, NUMBERS) and op in BINARY:
            try:
                total = BINARY[op](left, right)
            except (ZeroDivisionError, OverflowError):
                return _unread(node)
            return total if abs(total) < MAGNITUDE_MOST else _unread(node)
        if op is ast.Add and isinstance(left, list) and isinstance(right, list):
            return [*left, *right]
        return _unread(node)

    def _both(self, every: bool, values: Sequence[ast.expr], names: Mapping[str, object]) -> object:
        own: object = every
        for value in values:
            own = self.value(value, names)
            if isinstance(own, Unread) or bool(own) != every:
                return own
        return own

    def _compared(self, left: object, op: ast.cmpop, right: object, node: ast.expr) -> object:
        if isinstance(left, Unread) or isinstance(right, Unread):
            return _unread(node)
        match op:
            case ast.Is() | ast.IsNot():
                return (left is right) == isinstance(op, ast.Is)
            case ast.In() | ast.NotIn() if isinstance(right, list | dict):
                return (left in right) == isinstance(op, ast.In)
        try:
            return COMPARE[type(op)](left, right) if type(op) in COMPARE else _unread(node)
        except TypeError:
            return _unread(node)

    # ----------------------------------------------------------------------------------------------------- calls

    def _call(self, node: ast.Call, names: Mapping[str, object]) -> object:
        args = [self.value(arg, names) for arg in node.args if not isinstance(arg, ast.Starred)]
        keywords: dict[str, object] = {}
        for keyword in node.keywords:
            own = self.value(keyword.value, names)
            if keyword.arg is not None:
                keywords[keyword.arg] = own
            elif isinstance(own, dict):
                keywords |= {str(key): value for key, value in own.items()}
        if isinstance(node.func, ast.Attribute):
            return self._method(node, node.func, args, keywords, names)
        name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
        if name in MAKERS and node.args:
            return Made(self._kind(node.args[0], names), args[1:], keywords)
        if name in CASTS and len(args) == 1 and isinstance(args[0], str | int | float):
            try:
                return CASTS[name](args[0])
            except (ValueError, OverflowError):
                return _unread(node)
        if name in ("hasattr", "getattr") and len(args) >= 2 and isinstance(args[0], Made):
            own = args[0].values.get(str(args[1]), args[2] if len(args) == 3 else _unread(node))
            return own if name == "getattr" or isinstance(own, Unread) else True
        if name in ("deepcopy", "copy") and len(args) == 1:
            return args[0]
        if name in ("hasattr", "getattr", "isinstance", "len", "getenv"):
            return self._environment(node, args) if name == "getenv" else _unread(node)
        home, function = self._function(name)
        if home is not None and function is not None:
            return home.called(function, args, keywords)
        return Made(name, args, keywords, self._from(name))

    def _method(
        self,
        node: ast.Call,
        of: ast.Attribute,
        args: list[object],
        keywords: dict[str, object],
        names: Mapping[str, object],
    ) -> object:
        word = ast.unparse(of)
        if word in ("os.environ.get", "os.getenv"):
            return self._environment(node, args)
        if of.attr in MAKERS and node.args and isinstance(of.value, ast.Name):
            return Made(self._kind(node.args[0], names), args[1:], keywords)
        if word == "copy.deepcopy" and args:
            return args[0]
        owner = self.value(of.value, names)
        if isinstance(owner, str) and of.attr in TEXT_METHODS and not args:
            return str(getattr(owner, of.attr)())
        if isinstance(owner, list) and of.attr == "append" and args:
            owner.append(args[0])
            return None
        if isinstance(owner, dict) and of.attr == "get" and args:
            return owner.get(args[0], args[1] if len(args) > 1 else None)
        if isinstance(owner, Made):
            return Made(of.attr, [owner, *args], keywords)
        home, function = self._imported(word)
        if home is not None and function is not None:
            return home.called(function, args, keywords)
        return Made(word, args, keywords, self._from(word))

    def _kind(self, node: ast.expr, names: Mapping[str, object]) -> str:
        """What a maker is told to make: `Config(nl.Trainer)`, `Config(PEFT_STR2CLS["lora"])`."""
        if isinstance(node, ast.Subscript):
            return str(self.value(node.slice, names))
        return ast.unparse(node).rpartition(".")[2]

    def _environment(self, node: ast.Call, args: Sequence[object]) -> object:
        if len(args) < 2 or isinstance(args[1], Unread):
            return _unread(node)
        if str(args[1]).isdecimal():
            self.budget.assumed.append(f"{args[0]} of the environment (taken as its default, {args[1]})")
        return args[1]

    def _from(self, word: str) -> str:
        """What an imported function is, which does not lie beside the file; classes make what they are named by."""
        first, _, rest = word.partition(".")
        is_function = word.rpartition(".")[2][:1] not in string.ascii_uppercase and first in self.imports
        return ".".join([*self.imports[first], *([rest] if rest else [])]) if is_function else ""

    def _function(self, name: str) -> tuple[Module | None, ast.FunctionDef | None]:
        """Where a function stands: here, or in a file that is imported from and lies beside this one."""
        if name in self.functions:
            return self, self.functions[name]
        if name not in self.imports:
            return None, None
        module, own = self.imports[name]
        home = self._module(module)
        return (None, None) if home is None else home._function(own)

    def _imported(self, word: str) -> tuple[Module | None, ast.FunctionDef | None]:
        """The same for `llama3_8b.pretrain_recipe`, whose module is imported."""
        *owners, own = word.split(".")
        if owners[0] not in self.imports:
            return None, None
        first = ".".join(self.imports[owners[0]])
        home = self._module(".".join([PASSED_ON.get(first, first), *owners[1:]]))
        return (None, None) if home is None else home._function(own)

    def _module(self, name: str) -> Module | None:
        modules = self.budget.modules
        if not FOLLOWED & set(name.split(".")):
            return None
        if name not in modules and len(modules) < FILES_MOST:
            modules[name] = None  # while it is read itself
            path = _beside(self.place, name)
            if path is not None:
                tree = parsed(read_text(path, GIVE, BYTES_MOST), str(path))
                modules[name] = Module(tree, path, self.place, self.budget)
        return modules.get(name)

    def called(self, function: ast.FunctionDef, args: Sequence[object], keywords: Mapping[str, object]) -> object:
        """What a function of this file returns."""
        if self.depth >= DEPTH_MOST:
            return Unread(function.name)
        self.depth += 1
        try:
            self.run(function.body, self._bound(function.args, args, keywords))
        except _ReturnError as returned:
            return returned.value
        finally:
            self.depth -= 1
        return None

    def _bound(self, given: ast.arguments, args: Sequence[object], keywords: Mapping[str, object]) -> dict[str, object]:
        names = [arg.arg for arg in [*given.posonlyargs, *given.args]]
        firsts = dict(zip(reversed(names), reversed(given.defaults), strict=False))
        seconds = {
            arg.arg: own for arg, own in zip(given.kwonlyargs, given.kw_defaults, strict=True) if own is not None
        }
        bound: dict[str, object] = {
            name: self.value(default, self.names) for name, default in {**firsts, **seconds}.items()
        }
        bound |= dict(zip(names, args, strict=False))
        known = {*names, *(arg.arg for arg in given.kwonlyargs)}
        bound |= {name: own for name, own in keywords.items() if name in known}
        if given.kwarg is not None:
            bound[given.kwarg.arg] = {name: own for name, own in keywords.items() if name not in known}
        return bound


def module_of(path: Path, place: Path) -> Module:
    """A file, followed; what it imports is sought from `place`. Raises InputFileError."""
    tree = parsed(read_text(path, GIVE, BYTES_MOST), str(path))
    try:
        return Module(tree, path, place, Budget())
    except RecursionError:
        raise InputFileError(path, "is nested too deep to be followed", GIVE) from None


def _beside(place: Path, module: str) -> Path | None:
    """The file of a module under a folder above `place`, as far as the working directory."""
    folder, here = place.absolute().parent.resolve(), Path.cwd().resolve()
    above = [folder, *folder.parents]
    within = above[: above.index(here) + 1] if here in above else [folder]
    own = Path(*module.split("."))
    places = (at / name for at in within for name in (own.with_suffix(".py"), own / "__init__.py"))
    return next((at for at in places if at.is_file() and at.resolve().is_relative_to(within[-1])), None)


def _loaded(target: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(target), mode="eval").body


def _unread(node: ast.expr) -> Unread:
    return Unread(ast.unparse(node)[:80])
