"""Do the tests hold the physics? Draws mutants of it, runs the tests nearest to each, and lists those that survive.

    nice python validation/mutants.py --number 30 --seed 7 [--write docs/mutants.md]

A mutant is one change of one expression of a module of `ROOTS`: an operator for another, a constant, a term left out,
min for max, a comparison that takes or leaves its edge, a condition turned round, one side of a choice always taken. It
is written to a copy of src/, and the test files nearest by imports are run on it until one fails: first the module's
own, then those that import the module itself, then those that import what imports it; price examples and accepted
answers are always among them. A module is as likely as it has places to change.

The tree must not change meanwhile: tests are run where they lie. A file whose test killed a mutant is run on the code
as it is, once, and left out where it fails there too. What is ended by its limit of CPU time counts as a survivor.
"""

from __future__ import annotations

import argparse
import ast
import copy
import datetime
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict, deque
from dataclasses import dataclass
from pathlib import Path

import grimp

HERE = Path(__file__).resolve().parents[1]
PACKAGE = HERE / "src" / "windtunnel"
ROOTS = (
    "physics/cost", "physics/model", "physics/step", "physics/hardware", "studies/training", "studies/techniques",
    "studies/serving/step_time", "studies/resilience",
)  # fmt: skip
# What is read, written or drawn, and no physics.
LEFT_OUT = (
    "launch/", "parse", "huggingface", "catalogue", "config_file", "spec.py", "__init__", "question", "reproduce",
    "named", "answer", "excerpt", "op_table", "hardware/schema", "failures/read",
)  # fmt: skip
FILES_MOST = 15  # test files that are run on one mutant, price examples among them
CPU_SECONDS_MOST = 200  # for all of them together; wall time says little on a machine that others use
OPERATORS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Div,), ast.Div: (ast.Mult,), ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.Mult,), ast.Pow: (ast.Mult,),
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.And: (ast.Or,), ast.Or: (ast.And,),
}  # fmt: skip
UNDECIDED = "out of time"  # tests of the module take longer: it counts as a survivor
SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum",
           "ceil": "floor", "floor": "ceil"}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A change: the module's file, its line, what stood there and what stands there now."""

    path: Path
    line: int
    before: str
    after: str
    source: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: `{self.before}` -> `{self.after}`"


def changes_of(node: ast.AST) -> list[ast.AST]:
    """What may stand in place of a node."""
    found: list[ast.AST] = []
    if isinstance(node, ast.BinOp):
        found += [ast.BinOp(node.left, other(), node.right) for other in OPERATORS.get(type(node.op), ())]
        if isinstance(node.op, (ast.Add, ast.Sub)):
            found.append(node.left)  # the second term is left out
        if isinstance(node.op, ast.Add):
            found.append(node.right)
        if isinstance(node.op, (ast.Mult, ast.Div)):
            found.append(node.left)  # the second factor is left out
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        found += [ast.Compare(node.left, [other()], node.comparators) for other in OPERATORS.get(type(node.ops[0]), ())]
    elif isinstance(node, ast.BoolOp):
        found += [ast.BoolOp(other(), node.values) for other in OPERATORS[type(node.op)]]
        found += list(node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        found.append(node.operand)
    elif isinstance(node, ast.IfExp):
        found += [node.body, node.orelse]
    elif isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in SWAPPED:
            other_call = copy.deepcopy(node)
            if isinstance(other_call.func, ast.Name):
                other_call.func.id = SWAPPED[name]
            else:
                assert isinstance(other_call.func, ast.Attribute)
                other_call.func.attr = SWAPPED[name]
            found.append(other_call)
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        more = [node.value + 1] if isinstance(node.value, int) else [node.value * 1.5 or 1.0]
        more += [0] if isinstance(node.value, int) and node.value not in (0, 1) else []
        found += [ast.Constant(value) for value in more]
    elif isinstance(node, ast.AugAssign) and type(node.op) in (ast.Add, ast.Sub):
        found += [ast.AugAssign(node.target, OPERATORS[type(node.op)][0](), node.value), ast.Pass()]
    return found


def places(tree: ast.Module) -> list[ast.AST]:
    """Nodes of code that counts: no annotations, decorators, indices or messages of errors."""
    found: list[ast.AST] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.Raise, ast.Assert, ast.JoinedStr)):
            return
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.Subscript):  # an index is a place in a shape; what is indexed is looked at
            visit(node.value)
            return
        if changes_of(node):
            found.append(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "keywords_of_type"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    visit(child)

    visit(tree)
    return found


def replaced(source: str, node: ast.AST, by: ast.AST) -> str:
    """The text with one node written anew and the rest as it was."""
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    raw = source.encode()
    begin = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
    end = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
    text = ast.unparse(ast.fix_missing_locations(by))
    if not isinstance(by, (ast.AugAssign, ast.Pass)):
        text = f"({text})"
    return (raw[:begin] + text.encode() + raw[end:]).decode()


def modules() -> list[Path]:
    """Files that are mutated, relative to the package."""
    found = []
    for root in ROOTS:
        for path in sorted((PACKAGE / root).rglob("*.py")):
            name = path.relative_to(PACKAGE).as_posix()
            if not any(one in name for one in LEFT_OUT):
                found.append(path.relative_to(PACKAGE))
    return found


def drawn(number: int, seed: int) -> list[Mutant]:
    """So many mutants, each of another place; a node, then one of its changes."""
    every = []
    for path in modules():
        source = (PACKAGE / path).read_text()
        every += [(path, source, node) for node in places(ast.parse(source))]
    draw = random.Random(seed)
    found = []
    for path, source, node in draw.sample(every, number):
        by = draw.choice(changes_of(node))
        text = replaced(source, node, by)
        ast.parse(text)
        found.append(Mutant(path, node.lineno, ast.unparse(node), ast.unparse(ast.fix_missing_locations(by)), text))  # type: ignore[attr-defined]
    return found


class Tests:
    """Which test files hold a module, and which of them fail as it is."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        graph = grimp.build_graph("windtunnel", cache_dir=None)
        self.imported_by = {module: set(graph.find_modules_that_directly_import(module)) for module in graph.modules}
        self.files: dict[str, set[Path]] = defaultdict(set)
        for folder in ("tests/unit", "tests/laws"):
            for path in sorted((HERE / folder).rglob("test_*.py")):
                for module in _imports(path):
                    self.files[module].add(path)
        self.examples = sorted((HERE / "tests/unit").rglob("test_*examples.py"))
        self.sound: dict[Path, bool] = {}

    def nearest(self, module: str) -> list[Path]:
        """Price examples and as many other test files as there is room for: the module's own first, then by imports
        between, by place and by size; last the accepted answers, which take longest."""
        found: dict[Path, int] = {}
        seen, queue = {module}, deque([(module, 0)])
        while queue and len(found) < 4 * FILES_MOST:
            one, distance = queue.popleft()
            for path in sorted(self.files.get(one, ())):
                found.setdefault(path, distance)
            for other in sorted(self.imported_by.get(one, ())):
                if other not in seen:
                    seen.add(other)
                    queue.append((other, distance + 1))
        parts = set(module.split("."))
        own = f"test_{module.rpartition('.')[2]}.py"

        def rank(path: Path) -> tuple[bool, bool, int, int, int]:
            near, far = len(parts & set(path.with_suffix("").parts)), 1 + max(found.values(), default=0)
            is_last = path.name == "test_answer_examples.py"
            return is_last, path.name != own, found.get(path, far), -near, path.stat().st_size

        others = [path for path in sorted(found, key=rank) if path not in self.examples]
        return sorted([*self.examples, *others[: FILES_MOST - len(self.examples)]], key=rank)

    def is_sound(self, path: Path) -> bool:
        """Whether a file passes on the code as it is."""
        if path not in self.sound:
            self.sound[path] = self.run([path])[0] == 0
        return self.sound[path]

    def run(self, paths: list[Path]) -> tuple[int | None, str]:
        """pytest's status on test files, until the first that fails, and which that is; None: it was ended."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no", "-m"]
        command += ["not slow and not long and not browser and not extras", *map(str, paths)]
        environment = {**os.environ, "PYTHONPATH": str(self.tree), "PYTHONDONTWRITEBYTECODE": "1"}

        def limited() -> None:
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS_MOST, CPU_SECONDS_MOST))

        with tempfile.TemporaryFile("w+") as out:
            process = subprocess.Popen(
                command, cwd=HERE, env=environment, stdout=out, stderr=out, start_new_session=True, preexec_fn=limited
            )
            try:
                status = process.wait(20 * CPU_SECONDS_MOST)
            except subprocess.TimeoutExpired:
                return None, ""
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            if status < 0:  # ended by its limit
                return None, ""
            out.seek(0)
            failed = re.search(r"^(?:FAILED|ERROR) (?:\S*/)?(\S+)", out.read(), re.MULTILINE)
            return status, failed[1] if failed else ""


def _imports(path: Path) -> set[str]:
    """Modules of the package that a file imports, inside functions as well."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "windtunnel":
            found.add(node.module)
            found |= {f"{node.module}.{name.name}" for name in node.names}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names if name.name.split(".")[0] == "windtunnel"}
    return found


def judged(mutant: Mutant, tests: Tests) -> str:
    """Which test killed it; "" for a survivor; UNDECIDED."""
    place = tests.tree / "windtunnel" / mutant.path
    files = tests.nearest(".".join(("windtunnel", *mutant.path.with_suffix("").parts)))
    before = place.read_bytes()
    while True:
        place.write_text(mutant.source)
        try:
            status, failed = tests.run(files)
        finally:
            place.write_bytes(before)
        if status in (None, 0, 5):
            return "" if status is not None else UNDECIDED
        guilty = next((path for path in files if path.name == failed.partition("::")[0]), None)
        if guilty is None or tests.is_sound(guilty):
            return failed or "no import"
        files.remove(guilty)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", default="1/1", help="2/5: the second of five parts, where one run has little time")
    parser.add_argument("--only", default="", help="mutants of modules whose path holds this")
    parser.add_argument("--write", type=Path, help="append the survivors to this page")
    parser.add_argument("--list", action="store_true", help="say what would be drawn, and run nothing")
    asked = parser.parse_args()
    part, parts = map(int, asked.part.split("/"))
    mutants = [one for one in drawn(asked.number, asked.seed)[part - 1 :: parts] if asked.only in str(one.path)]
    if asked.list:
        print(*mutants, sep="\n")
        return
    survivors = []
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(PACKAGE, Path(place) / "windtunnel")
        tests = Tests(Path(place))
        for number, mutant in enumerate(mutants, 1):
            killer = judged(mutant, tests)
            lives = killer in ("", UNDECIDED)
            print(f"{number:3d} {mutant}: {(killer or 'SURVIVED') if lives else f'killed by {killer}'}", flush=True)
            survivors += [mutant] if lives else []
    killed = len(mutants) - len(survivors)
    print(f"seed {asked.seed}: {killed} of {len(mutants)} killed")
    if asked.write:
        today = datetime.date.today().isoformat()
        lines = [f"\n## {today}, seed {asked.seed}: {killed} of {len(mutants)} killed\n\n"]
        lines += [f"- `{one.path}:{one.line}`: `{one.before}` -> `{one.after}`\n" for one in survivors]
        with asked.write.open("a") as page:
            page.writelines(lines if survivors else [*lines, "None survived.\n"])


if __name__ == "__main__":
    main()
