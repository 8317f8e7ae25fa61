"""Compiled code of a package that cannot be written to, of a user without a home."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from windtunnel.engine import compiled

KERNEL = """
from numba import int64
from sealed.compiled import njit

@njit(int64(int64), cache=True)
def one_more(n):
    return n + 1
"""
PROGRAM = """
from numba.core import config
from sealed.compiled.kernel import one_more
print(config.CACHE_DIR, one_more(41), sum(one_more.stats.cache_hits.values()))
"""

pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="no users")


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    """The package's way of keeping code, with one small kernel. A file in a folder's place keeps even root out."""
    folder = tmp_path / "sealed" / "compiled"
    folder.mkdir(parents=True)
    (tmp_path / "sealed" / "__init__.py").touch()
    shutil.copy(compiled.__file__, folder / "__init__.py")
    (folder / "kernel.py").write_text(KERNEL)
    (folder / "__pycache__").touch()
    (tmp_path / "t").mkdir()
    return tmp_path


def run(sealed: Path) -> tuple[Path, str, int]:
    """Where compiled code is kept, what the kernel says and how often it came from there."""
    kept_out = ("NUMBA_", "XDG_", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(kept_out)}
    environment |= {"HOME": "/dev/null", "TMPDIR": str(sealed / "t"), "PYTHONPATH": str(sealed)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, cwd=sealed, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    folder, answer, hits = done.stdout.rsplit(maxsplit=2)
    return Path(folder), answer, int(hits)


def test_it_is_kept_in_a_temporary_folder_of_ours(sealed: Path) -> None:
    folder, answer, hits = run(sealed)
    assert (answer, hits) == ("42", 0)
    assert folder.parent == sealed / "t"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.rglob("*.nbc"))
    assert run(sealed) == (folder, "42", 1)


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", [b"", b"cut", b"flipped"], ids=["emptied", "cut", "flipped"])
def test_a_damaged_file_is_compiled_again(sealed: Path, kind: str, damage: bytes) -> None:
    folder, _, _ = run(sealed)
    (file,) = folder.rglob(f"*.{kind}")
    whole = file.read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 0x10]) + whole[middle + 1 :]
    file.write_bytes({b"": b"", b"cut": whole[:middle], b"flipped": flipped}[damage])
    assert run(sealed) == (folder, "42", 0)
    assert run(sealed) == (folder, "42", 1)


def test_a_folder_in_a_files_place_is_no_error(sealed: Path) -> None:
    folder, _, _ = run(sealed)
    (file,) = folder.rglob("*.nbc")
    file.unlink()
    (file / "inner").mkdir(parents=True)
    assert run(sealed)[1:] == ("42", 0)


def test_a_folder_that_others_can_write_to_is_not_trusted(sealed: Path) -> None:
    folder, _, _ = run(sealed)
    folder.chmod(0o777)
    other, answer, hits = run(sealed)
    assert (answer, hits) == ("42", 0)
    assert other != folder
    assert not other.exists(), "one process's own is taken away at its end"
