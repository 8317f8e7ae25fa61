"""What lies in a folder of installed packages is no part of the script, whichever of Python's folders it is."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from windtunnel.real.capture.fake_tensors import control_flow
from windtunnel.real.capture.installed import installed_folders
from windtunnel.real.capture.processes import script_errors

CACHES = (installed_folders, control_flow._frame_of, script_errors._foreign_folders)
SOURCE = """
from windtunnel.real.capture.fake_tensors.control_flow import call_site
def place():
    return call_site()
"""


@pytest.fixture
def module_in(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that lies in a folder of this name, which Python looks in."""
    folder = tmp_path / request.param
    folder.mkdir()
    (folder / "brought_along.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(folder)
    for cache in CACHES:
        cache.cache_clear()
    yield folder / "brought_along.py"
    sys.modules.pop("brought_along", None)
    for cache in CACHES:
        cache.cache_clear()


@pytest.mark.parametrize(
    ("module_in", "is_own"),
    [("site-packages", False), ("dist-packages", False), ("packages", True)],
    indirect=["module_in"],
)
def test_packages_of_the_system_are_not_the_script(module_in: Path, is_own: bool) -> None:
    place = importlib.import_module("brought_along").place
    assert (str(module_in) in control_flow.script_files()) == is_own
    assert script_errors._is_foreign(str(module_in)) != is_own
    line = str(place())
    assert Path(line.rpartition(":")[0]).name == (module_in if is_own else Path(__file__)).name
