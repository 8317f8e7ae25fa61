"""What the linter cannot say: no file imports itself by way of others, and the top level is seen at a glance."""

from __future__ import annotations

import re
from pathlib import Path

import grimp

import windtunnel

PACKAGE = Path(windtunnel.__file__).parent
PACKAGES_MOST = 8  # at the top level
ANY_MOST = 429  # may only fall
HEAPS_OF = {  # outside of the engine: what each is a heap of; none is of events
    "studies/fleet/clock/board.py": "heads of the queues by size of gang",
    "studies/fleet/policies/rigid/auction.py": "bids by gain",
    "studies/planning/advice/advise.py": "bounds of a search",
    "studies/planning/search/ahead.py": "what is asked of a process, most wanted first",
    "studies/planning/search/misfits.py": "plans that do not fit, the nearest first",
    "studies/planning/search/best_first.py": "nodes of branch and bound",
    "studies/programs/compiler/fusion.py": "kernels that may come next, in order of the program",
    "studies/rl/plan.py": "bounds of a search",
    "studies/serving/spot/dispatch.py": "requests by arrival, where an interrupted one goes to the front",
    "studies/techniques/flat/play.py": "tasks that are ready by urgency; times are the least of those that run",
}


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """Groups of modules that import each other, by whatever way (Tarjan's strongly connected components)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for other in sorted(imports[module]):
            if other not in order:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], order[other])
        if lowest[module] == order[module]:
            at = stack.index(module)
            found.append(set(stack[at:]))
            del stack[at:]

    for module in sorted(imports):
        if module not in order:
            visit(module)
    return [one for one in found if len(one) > 1]


def test_circles_are_found_however_long() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == [{"a", "b", "c"}]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_no_circle_among_files() -> None:
    """Imports inside functions and those for type checkers count as well."""
    graph = grimp.build_graph("windtunnel", cache_dir=None)
    imports = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    assert len(imports) > 300
    assert circles(imports) == []


def test_the_top_level_has_few_packages() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert len(packages) <= PACKAGES_MOST, packages


def test_only_what_draws_writes_rich_tables_or_html() -> None:
    """Faces give views; `faces/report/draw` alone makes tables, panels and tags of them. Progress is no answer."""
    tags = re.compile(r"</(div|table|p|h[1-6]|td|tr|span|svg|section)>")
    writers = set()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if tags.search(text) or re.search(r"^\s*(from|import) rich\.(?!console|progress)", text, re.MULTILINE):
            writers.add(path.relative_to(PACKAGE).parts[:3])
    assert writers == {("faces", "report", "draw")}


def test_any_only_becomes_rarer() -> None:
    """Lower the number with each that goes: types see nothing between a study and its face where it stands."""
    count = sum(len(re.findall(r"\bAny\b", path.read_text(encoding="utf-8"))) for path in PACKAGE.rglob("*.py"))
    assert count <= ANY_MOST, f"{count} times `Any`: give the type, or `object` where a value is only passed on"


def test_events_wait_in_the_engines_queue() -> None:
    """A loop of events uses `engine.events.EventQueue`; a heap of something else is named in HEAPS_OF."""
    heaps = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if re.search(r"^\s*(import heapq|from heapq import)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert heaps - {"physics/engine/events.py"} == set(HEAPS_OF)
