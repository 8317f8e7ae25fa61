"""A pytest plugin for .ci/run: leaves out the tests that the run before passed, as EARLIER_RUN (a JUnit file) says.

What was skipped there for want of PyTorch or a browser is not among them. What is left of `tests/e2e` comes first: its
files take longest, and none should begin when all others are done.
"""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree

import pytest


def passed(report: Path) -> set[tuple[str, str]]:
    """Module and name of each test without a failure, an error or a skip; none if there is no report."""
    if not report.is_file():
        return set()
    cases = ElementTree.parse(report).iter("testcase")
    return {(case.get("classname", ""), case.get("name", "")) for case in cases if len(case) == 0}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect them."""
    before = passed(Path(os.environ["EARLIER_RUN"]))
    left, deselected = [], []
    for item in items:
        file, _, name = item.nodeid.partition("::")
        known = (file.removesuffix(".py").replace("/", "."), name) in before
        (deselected if known else left).append(item)
    config.hook.pytest_deselected(items=deselected)
    items[:] = sorted(left, key=lambda item: "/e2e/" not in item.nodeid)
