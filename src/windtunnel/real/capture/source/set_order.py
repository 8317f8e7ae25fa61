"""Where a script's source takes what is another in each process: the order of a set, `hash`, numpy's random numbers.

Python draws a seed for the hashes of strings when a process starts, and other objects hash by their address; numpy's
own generator draws one when it is loaded, where nobody gives it any. Ranks are processes, so what follows from these
differs between them; here all ranks are forks of one process, and agree.
Found by the source alone: sets are displays, `set(...)`, what is reckoned from these, and names that are assigned one.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from windtunnel.real.capture.source.branches import branches_on, places_never_exchanged
from windtunnel.real.capture.source.trees import calls_of, nodes_of, parts_of, tree_of

_GENERATORS = ("np.random.", "numpy.random.")
_SEEDED = ("seed", "default_rng", "RandomState")  # what numpy is given a seed by
_SEEDERS = ("set_seed", "seed_everything")  # of libraries: they give numpy one too
_MAKERS = ("set", "frozenset")
_KEPT = ("union", "intersection", "difference", "symmetric_difference", "copy")  # methods that give a set again
_ALGEBRA = (ast.BitOr, ast.BitAnd, ast.BitXor, ast.Sub)
_ORDERED = ("list", "tuple", "iter", "enumerate", "zip", "map", "filter", "fromkeys", "join", "chain", "tqdm", "deque")
_UNORDERED = (
    "sorted",
    "len",
    "sum",
    "any",
    "all",
    "min",
    "max",
    "isinstance",
    *_MAKERS,
)  # the order is nothing to them


def orders_taken(paths: Mapping[str, str]) -> list[tuple[str, int]]:
    """Lines of files (path -> short name) that take the order of a set, or a hash: (short name, line)."""
    places = [(path, line) for path in paths for line in _lines_of(path)]
    return [(paths[path], line) for path, line in places_never_exchanged(list(paths), places)]


def numbers_drawn(paths: Mapping[str, str]) -> list[tuple[str, int]]:
    """Lines that draw from a generator to which nobody in these files gives a seed, and that decide a branch."""
    nodes = [(path, node) for path in paths for node in nodes_of(path)]
    calls = [(path, node, _dotted(node.func)) for path in paths for _, node in calls_of(path)]
    own = {node.name for _, node in nodes if isinstance(node, ast.FunctionDef)}
    imported = {
        alias.asname or alias.name: f"numpy.random.{alias.name}"
        for _, node in nodes
        if isinstance(node, ast.ImportFrom) and node.module == "numpy.random"
        for alias in node.names
    }
    if any(_is_seeding(node, imported.get(name, name), own) for _, node, name in calls):
        return []
    places = [(path, node.lineno) for path, node, name in calls if name.startswith(_GENERATORS)]
    deciding = [(path, line) for path, line in places if branches_on(path, line)]
    return [(paths[path], line) for path, line in places_never_exchanged(list(paths), deciding)]


def _dotted(node: ast.expr) -> str:
    """`np.random.rand`; of what is no such name, its last part: to write an expression out takes longer."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{_dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def _is_seeding(call: ast.Call, name: str, own: set[str]) -> bool:
    """Whether a call gives numpy's generator a seed; Python's own and torch's are others, and so may `own` ones be."""
    last = name.rpartition(".")[2]
    if last in _SEEDERS:  # what one of these files calls is looked at by itself
        return name not in own
    arguments = [*call.args, *(of.value for of in call.keywords)]
    is_none = bool(arguments) and isinstance(arguments[0], ast.Constant) and arguments[0].value is None
    return name.startswith(_GENERATORS) and last in _SEEDED and bool(arguments) and not is_none


def _lines_of(path: str) -> list[int]:
    tree = tree_of(path)
    if tree is None:
        return []
    nodes = parts_of(tree)
    harmless: set[int] = set()  # calls and comprehensions whose own order nobody sees
    for node in nodes:
        if isinstance(node, ast.Call) and _called(node) in _UNORDERED:
            harmless |= {id(part) for part in node.args}
            harmless |= {id(of) for part in node.args for of in getattr(part, "generators", ())}
        elif isinstance(node, ast.SetComp):
            harmless |= {id(of) for of in node.generators}
    names: set[str] = set()
    while True:  # a name may be assigned from another
        more = {name for node in nodes for name in _assigned(node, names)} - names
        if not more:
            break
        names |= more
    lines: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            sources = [] if id(node) in harmless else [node.iter]
        elif isinstance(node, ast.Starred):
            sources = [node.value]
        elif isinstance(node, ast.Call) and _called(node) in _ORDERED and id(node) not in harmless:
            sources = list(node.args)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "pop":
            sources = [] if node.args else [node.func.value]
        else:
            sources = []
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hash":
                lines.add(node.lineno)
        lines |= {part.lineno for part in sources if _is_set(part, names)}
    return sorted(lines)


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _assigned(node: ast.AST, names: set[str]) -> list[str]:
    """Names that a statement makes a set, or says that they are."""
    if isinstance(node, ast.Assign) and _is_set(node.value, names):
        return [_last(target) for target in node.targets if _last(target)]
    if isinstance(node, ast.AnnAssign | ast.arg) and node.annotation is not None:
        annotation = ast.unparse(node.annotation).split("[")[0].rpartition(".")[2].lower()
        name = node.arg if isinstance(node, ast.arg) else _last(node.target)
        return [name] if name and annotation in (*_MAKERS, "abstractset", "mutableset") else []
    return []


def _last(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _is_set(node: ast.AST, names: set[str]) -> bool:
    if isinstance(node, ast.Set):  # whole numbers have one order
        return not all(isinstance(part, ast.Constant) and type(part.value) is int for part in node.elts)
    if isinstance(node, ast.Name | ast.Attribute):
        return _last(node) in names
    if isinstance(node, ast.BinOp) and isinstance(node.op, _ALGEBRA):
        return any(_is_set(side, names) or _is_keys(side) for side in (node.left, node.right))
    if isinstance(node, ast.Call):
        name = _called(node)
        is_method = isinstance(node.func, ast.Attribute) and name in _KEPT
        return (isinstance(node.func, ast.Name) and name in _MAKERS) or (is_method and _is_set(node.func.value, names))  # type: ignore[attr-defined]
    return isinstance(node, ast.SetComp)


def _is_keys(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "keys"
