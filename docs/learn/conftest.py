"""The file that a lab grades: `skeleton.py` beside the test, or what the environment variable LAB names.

LAB=mine.py grades that file. LAB=folder grades the file in it that has the lab's name: `roofline.py` for `01-roofline`.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

LONGEST_S = 10  # the slowest takes half a second; a loop that also appends fills gigabytes in a minute


def graded_file(lab: Path) -> Path:
    """The file to grade for a lab's folder."""
    named = os.environ.get("LAB")
    if not named:
        return lab / "skeleton.py"
    path = Path(named).resolve()
    return path / f"{lab.name.partition('-')[2].replace('-', '_')}.py" if path.is_dir() else path


@pytest.fixture(scope="module")
def lab(request: pytest.FixtureRequest) -> ModuleType:
    """The module under test."""
    folder = request.path.parent
    path = graded_file(folder)
    spec = importlib.util.spec_from_file_location(f"lab_{folder.name[:2]}", path)
    assert spec is not None, f"{path} is no Python file"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def give_up(signum: int, frame: object) -> None:
    """Fail the test where it is: pytest then shows the loop that does not end."""
    pytest.fail(f"no answer after {LONGEST_S} s: does your loop end?")


@pytest.fixture(autouse=True)
def stop_clock(lab: ModuleType) -> Iterator[Callable[[], object]]:
    """A test may take `LONGEST_S`, or as long as it likes from when it calls what this gives."""
    if not hasattr(signal, "SIGALRM"):  # Windows has none
        yield lambda: None
        return
    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(LONGEST_S)
    yield lambda: signal.alarm(0)
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
