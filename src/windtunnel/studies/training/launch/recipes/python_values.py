"""Values of a configuration in Python that is followed on its text, and what operators and methods make of them."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from windtunnel.errors import InputFileError

GIVE = "give a recipe or a configuration in Python"
LISTED_MOST = 10_000  # entries of a list that is repeated
MAGNITUDE_MOST, TEXT_MOST = 10**15, 80
CLASSES: Mapping[str, type] = {"str": str, "int": int, "float": float, "bool": bool, "dict": dict}
BUILT_IN: Mapping[str, Callable[..., object]] = {
    "int": int, "float": float, "str": str, "bool": bool, "max": max, "min": min, "list": list,
}  # fmt: skip
NUMBERS, SCALARS = (int, float), (str, int, float)
DICTIONARY_METHODS = ("get", "pop", "update", "items", "keys", "values", "copy")
SPEAKERS = {"print", "log", "logger", "logging", "warnings", "isinstance", "len", "str", "repr", "type", "id", "list"}
HARMLESS = ("validate", "get", "to_megatron", "is_", "has", "with_", "items", "keys", "values", "from_")  # beginnings
MAKING = ("from_", "to_megatron", "get_model_config")  # methods that make an object: `AutoBridge.from_hf_pretrained`
BINARY = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv, ast.Mod: operator.mod,
}  # fmt: skip
COMPARE: Mapping[type[ast.cmpop], Callable[..., bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unread:
    """A value that is not known here, as the file writes it."""

    text: str


@dataclass(slots=True, eq=False)
class CallResult:
    """What a call makes: the name of what is called, and keywords and attributes as set last."""

    kind: str
    args: list[object] = field(default_factory=list)
    values: dict[str, object] = field(default_factory=dict)
    rests_on: str = ""  # the function that makes it and that is not followed


def parsed(text: str, where: str) -> ast.Module:
    """The tree of a Python file. Raises InputFileError."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputFileError(where, f"is no Python ({type(error).__name__})", GIVE) from None


def is_unread(value: object) -> bool:
    """Whether a value is not known: unread, or what a function gives that is not followed."""
    return isinstance(value, Unread) or (isinstance(value, CallResult) and bool(value.rests_on))


def text_of(node: ast.AST) -> str:
    """An expression or a statement as the file writes it."""
    try:
        return ast.unparse(node)
    except ValueError:  # a whole number of more digits than Python writes
        return "a number of too many digits"


def unread(node: ast.AST) -> Unread:
    """An expression whose value is not known."""
    return Unread(text_of(node)[:TEXT_MOST])


def key_of(value: object) -> str | int | tuple[object, ...] | None:
    """A key of a dictionary: a text, a number, or several of them; None for what is none."""
    if isinstance(value, list):
        return tuple(value) if all(isinstance(own, str | int) for own in value) else None
    return value if isinstance(value, str | int) else None


def item_of(owner: object, key: object, node: ast.expr) -> object:
    """`owner[key]`."""
    if isinstance(owner, dict):
        word = key_of(key)
        return unread(node) if word is None else owner.get(word, unread(node))
    if isinstance(owner, list) and isinstance(key, int) and -len(owner) <= key < len(owner):
        return owner[key]
    return unread(node)


def total_of(left: object, op: type[ast.operator], right: object, node: ast.expr) -> object:
    """Two values put together by an operator."""
    if isinstance(left, NUMBERS) and isinstance(right, NUMBERS) and op in BINARY:
        try:
            total = BINARY[op](left, right)
        except (ZeroDivisionError, OverflowError):
            return unread(node)
        return total if abs(total) < MAGNITUDE_MOST else unread(node)
    if op is ast.Add and isinstance(left, list) and isinstance(right, list):
        return [*left, *right]
    if op is ast.Mult and isinstance(left, list) and isinstance(right, int) and len(left) * right <= LISTED_MOST:
        return left * right
    if op is ast.BitOr and isinstance(left, dict) and isinstance(right, dict):
        return left | right
    return unread(node)


def compared(left: object, op: ast.cmpop, right: object, node: ast.expr) -> object:
    """Two values compared: numbers and text, and lists of them."""
    if is_unread(left) or is_unread(right):
        return unread(node)
    match op:
        case ast.Is() | ast.IsNot():
            return (left is right) == isinstance(op, ast.Is)
        case ast.In() | ast.NotIn() if isinstance(right, dict) and isinstance(left, list):
            return (key_of(left) in right) == isinstance(op, ast.In)
        case ast.In() | ast.NotIn() if isinstance(right, list | dict):
            if not isinstance(left, SCALARS) or not all(isinstance(own, SCALARS) for own in right):
                return unread(node)
            return (left in right) == isinstance(op, ast.In)
    lists = [own for own in (left, right) if isinstance(own, list | dict)]
    if type(op) not in COMPARE or any(not isinstance(own, SCALARS) for listed in lists for own in listed):
        return unread(node)
    try:
        return COMPARE[type(op)](left, right)
    except TypeError:
        return unread(node)


def built_in(name: str, args: Sequence[object], node: ast.expr) -> object:
    """What a function of Python gives: the largest, the least, a number or a text of another kind, a list."""
    if name == "list":
        return list(args[0]) if len(args) == 1 and isinstance(args[0], list) else unread(node)
    if name in ("max", "min"):
        numbers = [own for own in args if isinstance(own, NUMBERS)]
        if len(numbers) < len(args):
            return unread(node)
        return max(numbers) if name == "max" else min(numbers)
    if len(args) != 1 or not isinstance(args[0], SCALARS):
        return unread(node)
    try:
        return BUILT_IN[name](args[0])
    except (ValueError, OverflowError):
        return unread(node)


def _dispatcher(backend: object = None) -> dict[str, object]:
    if backend not in ("deepep", "hybridep"):
        return {}
    return {
        "moe_token_dispatcher_type": "flex",
        "moe_flex_dispatcher_backend": backend,
        "moe_shared_expert_overlap": False,
    }


def _graph_parts(parts: object = None) -> dict[str, object]:
    return {"cuda_graph_scope": [] if parts is None else parts}


# Functions of Megatron-Bridge's library, which is not followed, and the attributes that each sets of its first
# argument (0.5: `utils/cuda_graph.py`, `training/flex_dispatcher_backend.py`).
LIBRARY: Mapping[str, Callable[..., dict[str, object]]] = {
    "set_cuda_graph_modules": _graph_parts,
    "clear_cuda_graph_modules": _graph_parts,
    "set_full_iteration_cuda_graph": lambda: {"cuda_graph_impl": "full_iteration", "cuda_graph_scope": []},
    "apply_flex_dispatcher_backend": _dispatcher,
}


def copied(value: object, spend: Callable[[], None], copies: dict[int, object]) -> object:
    """A deep copy; every part of it is spent."""
    spend()
    if id(value) in copies:
        return copies[id(value)]
    if isinstance(value, CallResult):
        copy = copies[id(value)] = CallResult(value.kind, rests_on=value.rests_on)
        copy.args = [copied(own, spend, copies) for own in value.args]
        copy.values = {name: copied(own, spend, copies) for name, own in value.values.items()}
        return copy
    if isinstance(value, list):
        listed: list[object] = []
        copies[id(value)] = listed
        listed.extend(copied(own, spend, copies) for own in value)
        return listed
    if isinstance(value, dict):
        pairs: dict[object, object] = {}
        copies[id(value)] = pairs
        pairs.update({key: copied(own, spend, copies) for key, own in value.items()})
        return pairs
    return value


def is_instance(value: object, name: str, node: ast.expr) -> object:
    """Whether a value is of a class of Python; what a function makes that is not followed is no number and no text."""
    if name in CLASSES and not isinstance(value, Unread):
        return isinstance(value, CLASSES[name])
    plain = value is None or isinstance(value, str | int | float | dict)
    return False if plain and name.isidentifier() and name[0].isupper() else unread(node)


def may_change(function: str) -> bool:
    """Whether a function by its name may change what it is given."""
    return function.partition(".")[0] not in SPEAKERS and not function.rpartition(".")[2].startswith(HARMLESS)


def of_dictionary(
    node: ast.expr,
    method: str,
    owner: dict[object, object],
    args: Sequence[object],
    keywords: Mapping[str, object],
) -> object:
    """What a method of a dictionary gives, and makes of it."""
    key = args[0] if args and isinstance(args[0], SCALARS) else None
    if method == "get" and key is not None:
        return owner.get(key, args[1] if len(args) > 1 else None)
    if method == "pop" and key is not None:
        return owner.pop(key, args[1] if len(args) > 1 else unread(node))
    if method == "update":
        for own in args:
            owner.update(own if isinstance(own, dict) else {f"**{text_of(node)}": unread(node)})
        owner.update(keywords)
        return None
    return unread(node)


def settings_of(part: object) -> Mapping[str, object]:
    """The attributes of a part; none of what is no object."""
    return part.values if isinstance(part, CallResult) else {}


def word_of(value: object) -> str:
    """A value as the file writes it."""
    if isinstance(value, Unread):
        return value.text
    return f"{value.kind}(...)" if isinstance(value, CallResult) else str(value)


def kind_of(part: object) -> str:
    """What makes a part, by its name."""
    return part.kind if isinstance(part, CallResult) else "of this recipe"
