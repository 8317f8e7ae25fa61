"""Scripts beside the product, which no type checker reads: what they import of it is there."""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from windtunnel.errors import UserError

ROOT = Path(__file__).parents[2]
FOLDERS = ("validation", "benchmarks", "examples", "docs")


def imported(folder: str) -> set[tuple[str, str, str]]:
    """(script, module of the product, name) of each import."""
    return {
        (str(path.relative_to(ROOT)), node.module, alias.name)
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "windtunnel"
        for alias in node.names
    }


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_scripts_import_of_the_product_is_there(folder: str) -> None:
    names = imported(folder)
    assert names
    missing = []
    for script, module, name in sorted(names):
        try:
            is_there = hasattr(import_module(module), name) or find_spec(f"{module}.{name}") is not None
        except ModuleNotFoundError as error:
            is_there = not str(error.name).startswith("windtunnel")  # what an extra brings may not be installed
        except UserError:  # it is there, and says which extra it needs
            is_there = True
        if not is_there:
            missing.append(f"{script}: {module}.{name}")
    assert missing == []
