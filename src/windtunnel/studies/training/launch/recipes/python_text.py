"""What a configuration in Python would set, read off its text: nothing of it is run.

Constants, names, calls of functions that stand in the file or in one that it imports and that lies beside it, and
assignments to attributes are followed. A call of anything else is an object of that name with its arguments. What
depends on more (loops, comprehensions, what the machine says) is `Unread`; an environment variable is its default.
"""

from __future__ import annotations

import ast
import string
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from windtunnel.errors import InputFileError
from windtunnel.files.bytes import read_text
from windtunnel.studies.training.launch.job_file import file_beside
from windtunnel.studies.training.launch.recipes.python_values import (
    BUILT_IN,
    DICTIONARY_METHODS,
    GIVE,
    LIBRARY,
    MAKING,
    NUMBERS,
    CallResult,
    Unread,
    built_in,
    compared,
    copied,
    is_instance,
    is_unread,
    item_of,
    key_of,
    may_change,
    of_dictionary,
    parsed,
    text_of,
    total_of,
    unread,
)

BYTES_MOST, STEPS_MOST, DEPTH_MOST, FILES_MOST = 1 << 20, 100_000, 40, 40
FOLLOWED = {"recipes", "perf_recipes"}  # in a module's name: what else is imported is a library, which is not read
PASSED_ON = {"nemo.collections.llm": "nemo.collections.llm.recipes"}  # a package that hands on the modules of another
MAKERS = ("Config", "Partial", "partial")  # of nemo_run and functools: of their first argument
TEXT_METHODS = ("lower", "upper", "strip")


class _ReturnError(Exception):  # a function has reached its `return`
    def __init__(self, value: object) -> None:
        self.value = value


@dataclass(slots=True)
class Budget:
    """How much is followed of one file, and what was taken for granted on the way."""

    steps: int = 0
    assumed: list[str] = field(default_factory=list)
    modules: dict[str, Module | None] = field(default_factory=dict)

    def spend(self, where: str, steps: int = 1) -> None:
        """Count steps. Raises InputFileError."""
        self.steps += steps
        if self.steps > STEPS_MOST:
            raise InputFileError(where, f"takes more than {STEPS_MOST:,} steps to follow", GIVE)


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
                outcome = self.value(value, names)
                for target in targets:
                    self._set(target, outcome, names)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._set(target, self.value(value, names), names)
            case ast.AugAssign(target=target, op=op, value=value):
                before = ast.parse(ast.unparse(target), mode="eval").body
                self._set(target, self.value(ast.BinOp(before, op, value), names), names)
            case ast.Expr(value=value):
                self.value(value, names)
            case ast.Return(value=value):
                raise _ReturnError(None if value is None else self.value(value, names))
            case ast.If(test=test, body=body, orelse=orelse):
                on = self.value(test, names)
                if is_unread(on):
                    self._forget([*body, *orelse], text_of(test), names)
                else:
                    self.run(body if on else orelse, names)
            case ast.With(body=body) | ast.Try(body=body):
                self.run(body, names)
            case ast.For() | ast.While():
                self._forget([node], "a loop", names)
            case ast.Match(subject=subject):
                self._forget([node], f"match {text_of(subject)}", names)
            case ast.Raise():
                raise _ReturnError(Unread(text_of(node)))

    def _forget(self, body: Sequence[ast.stmt], why: str, names: dict[str, object]) -> None:
        """What statements set that may or may not be reached is not known; what they may change otherwise is named."""
        for node in (inner for statement in body for inner in ast.walk(statement)):
            match node:
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        self._set(target, Unread(f"{text_of(value)} if {why}"), names)
                case (
                    ast.AugAssign(target=target, value=value)
                    | ast.NamedExpr(target=target, value=value)
                    | ast.AnnAssign(target=target, value=ast.expr() as value)
                ):
                    self._set(target, Unread(f"{text_of(value)} if {why}"), names)
                case ast.For(target=target):
                    self._set(target, Unread(f"{text_of(target)} of a loop"), names)
                case ast.Return():
                    self._name(node, why)
                case ast.Call(func=func):
                    owner = [func.value] if isinstance(func, ast.Attribute) else []
                    inputs = [*owner, *node.args, *(keyword.value for keyword in node.keywords)]
                    plain = [self.value(own, names) for own in inputs if isinstance(own, ast.Name | ast.Attribute)]
                    if any(isinstance(own, CallResult | dict | list) for own in plain) and may_change(text_of(func)):
                        self._name(node, why)

    def _name(self, node: ast.stmt | ast.expr, why: str = "") -> None:
        """A line that may change what is set and that is not followed."""
        text = text_of(node) + (f" if {why}" if why else "")
        self.budget.assumed.append(f"{self.path.name}:{node.lineno} {text[:120]}")

    def _set(self, target: ast.expr, value: object, names: dict[str, object]) -> None:
        match target:
            case ast.Name(id=name):
                names[name] = value
            case ast.Attribute(value=of, attr=name):
                owner = self._owner(of, names)
                if isinstance(owner, CallResult):
                    owner.values[name] = value
            case ast.Subscript(value=of, slice=ast.Constant(value=key)):
                owner = self.value(of, names)
                if isinstance(owner, dict) and isinstance(key, str | int):
                    owner[key] = value
                elif isinstance(owner, CallResult | dict | list):
                    self._name(target)
            case ast.Subscript(value=of) if isinstance(self.value(of, names), CallResult | dict | list):
                self._name(target)
            case ast.Tuple(elts=elts) | ast.List(elts=elts):
                parts = value if isinstance(value, list) and len(value) == len(elts) else None
                for at, elt in enumerate(elts):
                    own = (
                        CallResult(f"{value.kind}[{at}]", rests_on=value.rests_on)
                        if isinstance(value, CallResult)
                        else Unread(text_of(elt))
                    )
                    self._set(elt, own if parts is None else parts[at], names)

    def _owner(self, node: ast.expr, names: dict[str, object]) -> object:
        """What an attribute is set of; a part that its maker has by default, if nothing else has set it."""
        if isinstance(node, ast.Attribute):
            above = self._owner(node.value, names)
            if isinstance(above, CallResult) and node.attr not in above.values:
                above.values[node.attr] = CallResult(node.attr.title())
        return self.value(node, names)

    # ----------------------------------------------------------------------------------------------- expressions

    def value(self, node: ast.expr, names: Mapping[str, object]) -> object:
        """What an expression is."""
        self.budget.spend(str(self.path))
        match node:
            case ast.Constant(value=value):
                return unread(node) if isinstance(value, int) and value.bit_length() > 64 else value
            case ast.Name(id=name):
                return names[name] if name in names else self._constant(name)
            case ast.Attribute(value=of, attr=name):
                owner = self.value(of, names)
                return owner.values.get(name, Unread(text_of(node))) if isinstance(owner, CallResult) else unread(node)
            case ast.List(elts=elts) | ast.Tuple(elts=elts):
                return [self.value(elt, names) for elt in elts]
            case ast.ListComp(elt=elt, generators=[ast.comprehension(ast.Name(id=each), over, ifs=[])]):
                listed = self.value(over, names)
                return (
                    [self.value(elt, {**names, each: own}) for own in listed]
                    if isinstance(listed, list)
                    else unread(node)
                )
            case ast.Dict():
                return self._dictionary(node, names)
            case ast.Subscript(value=of, slice=key):
                return item_of(self.value(of, names), self.value(key, names), node)
            case ast.UnaryOp(op=op, operand=operand):
                own = self.value(operand, names)
                if isinstance(op, ast.Not):
                    return unread(node) if is_unread(own) else not own
                return -own if isinstance(op, ast.USub) and isinstance(own, NUMBERS) else unread(node)
            case ast.BinOp(left=left, op=op, right=right):
                total = total_of(self.value(left, names), type(op), self.value(right, names), node)
                self.budget.spend(str(self.path), len(total) if isinstance(total, list | dict) else 0)
                return total
            case ast.BoolOp(op=op, values=values):
                return self._both(isinstance(op, ast.And), values, names)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return compared(self.value(left, names), op, self.value(right, names), node)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                on = self.value(test, names)
                return unread(node) if is_unread(on) else self.value(body if on else orelse, names)
            case ast.Call():
                return self._call(node, names)
        return unread(node)

    def _dictionary(self, node: ast.Dict, names: Mapping[str, object]) -> object:
        pairs: dict[object, object] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            own = self.value(value, names)
            if key is not None:
                word = key_of(self.value(key, names))
                if word is None:
                    return unread(node)
                pairs[word] = own
            elif isinstance(own, dict):
                pairs |= own
            else:
                pairs[f"**{text_of(value)}"] = Unread(text_of(value))
        return pairs

    def _both(self, every: bool, values: Sequence[ast.expr], names: Mapping[str, object]) -> object:
        own: object = every
        for value in values:
            own = self.value(value, names)
            if is_unread(own) or bool(own) != every:
                return own
        return own

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
            else:
                keywords[f"**{text_of(keyword.value)}"] = Unread(text_of(keyword.value))
        if isinstance(node.func, ast.Attribute):
            return self._method(node, node.func, args, keywords, names)
        name = node.func.id if isinstance(node.func, ast.Name) else text_of(node.func)
        if name in MAKERS and node.args:
            return CallResult(self._kind(node.args[0], names), args[1:], keywords)
        if name in BUILT_IN and args:
            return built_in(name, args, node)
        if name in LIBRARY and args and isinstance(args[0], CallResult):
            args[0].values |= LIBRARY[name](*args[1:])
            return None
        if name == "dict" and not args:
            return dict(keywords)
        if name == "setattr" and len(args) == 3 and isinstance(args[0], CallResult):
            if isinstance(args[1], str):
                args[0].values[args[1]] = args[2]
            else:
                self._name(node)
            return None
        if name in ("hasattr", "getattr") and len(args) >= 2 and isinstance(args[0], CallResult):
            own = args[0].values.get(str(args[1]), args[2] if len(args) == 3 else unread(node))
            return own if name == "getattr" or isinstance(own, Unread) else True
        if name in ("deepcopy", "copy") and len(args) == 1:
            return copied(args[0], lambda: self.budget.spend(str(self.path)), {})
        if name == "isinstance" and len(args) == 2:
            return is_instance(args[0], text_of(node.args[1]), node)
        if name in ("hasattr", "getattr", "isinstance", "len", "getenv"):
            return self._environment(node, args) if name == "getenv" else unread(node)
        home, function = self._function(name)
        if home is not None and function is not None:
            return home.called(function, args, keywords)
        return self._unfollowed(node, CallResult(name, args, keywords, self._from(name)))

    def _unfollowed(self, node: ast.Call, result: CallResult) -> CallResult:
        """What a call makes that is not followed; a function may change the objects that it is given."""
        inputs = [*result.args, *result.values.values()]
        changes = any((isinstance(own, CallResult) and not own.rests_on) or isinstance(own, dict) for own in inputs)
        if result.rests_on and changes and may_change(result.kind):
            self._name(node)
        return result

    def _method(
        self,
        node: ast.Call,
        of: ast.Attribute,
        args: list[object],
        keywords: dict[str, object],
        names: Mapping[str, object],
    ) -> object:
        word = text_of(of)
        if word in ("os.environ.get", "os.getenv"):
            return self._environment(node, args)
        if of.attr in MAKERS and node.args and isinstance(of.value, ast.Name):
            return CallResult(self._kind(node.args[0], names), args[1:], keywords)
        if word in ("copy.deepcopy", "copy.copy") and args:
            return copied(args[0], lambda: self.budget.spend(str(self.path)), {})
        owner = self.value(of.value, names)
        if isinstance(owner, str) and of.attr in TEXT_METHODS and not args:
            return str(getattr(owner, of.attr)())
        if isinstance(owner, list) and of.attr == "append" and args:
            owner.append(args[0])
            return None
        if isinstance(owner, dict):
            if of.attr not in DICTIONARY_METHODS:
                self._name(node)
            return of_dictionary(node, of.attr, owner, args, keywords)
        if isinstance(owner, list):
            self._name(node)
            return unread(node)
        if isinstance(owner, CallResult):
            if not owner.rests_on and isinstance(of.value, ast.Name | ast.Attribute) and may_change(of.attr):
                self._name(node)
            rests_on = owner.rests_on if of.attr.startswith(MAKING) else of.attr
            return self._unfollowed(node, CallResult(of.attr, [owner, *args], keywords, rests_on))
        home, function = self._imported(word)
        if home is not None and function is not None:
            return home.called(function, args, keywords)
        return self._unfollowed(node, CallResult(word, args, keywords, self._from(word)))

    def _kind(self, node: ast.expr, names: Mapping[str, object]) -> str:
        """What a maker is told to make: `Config(nl.Trainer)`, `Config(PEFT_STR2CLS["lora"])`."""
        if isinstance(node, ast.Subscript):
            return str(self.value(node.slice, names))
        return text_of(node).rpartition(".")[2]

    def _environment(self, node: ast.Call, args: Sequence[object]) -> object:
        if len(args) < 2 or isinstance(args[1], Unread):
            return unread(node)
        if str(args[1]).isdecimal():
            self.budget.assumed.append(f"{args[0]} of the environment (taken as its default, {args[1]})")
        return args[1]

    def _from(self, word: str) -> str:
        """What a function is that is not followed; empty for a class, which makes what it is named by."""
        first, _, rest = word.partition(".")
        owner, _, own = word.rpartition(".")
        kind = owner.rpartition(".")[2] if own.startswith(MAKING) else own
        if kind.lstrip("_")[:1] in {*string.ascii_uppercase}:
            return ""
        return ".".join([*self.imports.get(first, (first,)), *([rest] if rest else [])])

    def _constant(self, name: str) -> object:
        """What a name is outside of functions, here or in a file that lies beside this one."""
        if name in self.names or name not in self.imports:
            return self.names.get(name, Unread(name))
        module, own = self.imports[name]
        home = self._module(module)
        return Unread(name) if home is None or home is self else home._constant(own)

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
            own = Path(*name.split("."))
            path = file_beside(self.place, own.with_suffix(".py"), own / "__init__.py")
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

    def _bound(
        self, signature: ast.arguments, args: Sequence[object], keywords: Mapping[str, object]
    ) -> dict[str, object]:
        names = [arg.arg for arg in [*signature.posonlyargs, *signature.args]]
        firsts = dict(zip(reversed(names), reversed(signature.defaults), strict=False))
        seconds = {
            arg.arg: own
            for arg, own in zip(signature.kwonlyargs, signature.kw_defaults, strict=True)
            if own is not None
        }
        bound: dict[str, object] = {
            name: self.value(default, self.names) for name, default in {**firsts, **seconds}.items()
        }
        bound |= dict(zip(names, args, strict=False))
        if signature.kwarg is None:
            self.budget.assumed += [name for name in keywords if name.startswith("**")]
        parameters = {*names, *(arg.arg for arg in signature.kwonlyargs)}
        bound |= {name: own for name, own in keywords.items() if name in parameters}
        if signature.kwarg is not None:
            bound[signature.kwarg.arg] = {name: own for name, own in keywords.items() if name not in parameters}
        return bound


def module_of(path: Path, place: Path) -> Module:
    """A file, followed; what it imports is sought from `place`. Raises InputFileError."""
    tree = parsed(read_text(path, GIVE, BYTES_MOST), str(path))
    try:
        return Module(tree, path, place, Budget())
    except RecursionError:
        raise InputFileError(path, "is nested too deep to be followed", GIVE) from None
