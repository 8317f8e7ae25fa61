"""What a standby imports while it waits."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch.distributed as dist

from windtunnel.real.survive.loop.warm import Follower, tell_imports

pytestmark = pytest.mark.extras


def test_a_standby_imports_what_a_rank_has_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not what is the script's own, nor twice; what cannot be imported is left to the script."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "of_the_script.py").write_text("")
    names = ["wave", "of_the_script"]
    store = dist.HashStore()
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    follower = Follower(store)
    assert not follower.follow()  # nobody has told yet
    for name in names:
        __import__(name)
    monkeypatch.setitem(sys.modules, "wave.is_no_package", sys.modules["wave"])
    tell_imports(store)
    for name in (*names, "wave.is_no_package"):
        del sys.modules[name]
    assert follower.follow()
    assert "wave" in sys.modules
    assert not follower.follow()
    assert "of_the_script" not in sys.modules
