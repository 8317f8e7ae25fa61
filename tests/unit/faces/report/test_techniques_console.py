"""The list of techniques at the terminal."""

from __future__ import annotations

import io

from rich.console import Console

from windtunnel.faces.report.draw.console import print_document
from windtunnel.faces.report.techniques import techniques_document


def _screen(width: int = 120) -> Console:
    return Console(file=io.StringIO(), width=width)


def _text(console: Console) -> str:
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_long_lines_of_techniques_stay_indented() -> None:
    one = {
        "name": "lina", "aliases": [], "does": "what it does " * 12, "needs": "experts", "runs": "nothing",
        "excludes": [], "parameters": [],
    }  # fmt: skip
    console = _screen(60)
    print_document(techniques_document([one]), console)
    _, _, _, first, *others = _text(console).splitlines()
    assert first == "lina"
    assert all(line.startswith(("• ", "  ")) and len(line) <= 60 for line in others)


def test_values_of_a_parameter_are_shown_as_they_are_given() -> None:
    parameter = {"name": "nvme", "default": False, "help": "a drive", "one_of": []}
    one = {
        "name": "offload", "aliases": [], "does": "what", "needs": "memory", "runs": "it", "excludes": [],
        "parameters": [parameter],
    }  # fmt: skip
    console = _screen()
    print_document(techniques_document([one]), console)
    assert "nvme=false a drive" in _text(console)
