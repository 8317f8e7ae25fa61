"""Compiled code of a package that cannot be written to, of a user without a home."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from windtunnel.physics.engine import compiled

Run = Callable[[Path], tuple[Path, str, int]]
KERNEL = """
from numba import int64
from sealed.compiled import njit

@njit(int64(int64), cache=True)
def one_more(n):
    return n + 1
"""
# Numba is loaded, and compiles its first function, once: each folder gets a process of its own, forked from that.
PROGRAM = """
import os, sys, tempfile
from numba import int64, njit
from numba.core import config
njit(int64(int64))(lambda n: n)
for folder in map(str.strip, sys.stdin):
    if os.fork() == 0:
        os.environ["TMPDIR"], tempfile.tempdir = folder + "/t", None
        os.chdir(folder)
        sys.path.insert(0, folder)
        from sealed.compiled.kernel import one_more
        print(config.CACHE_DIR, one_more(41), sum(one_more.stats.cache_hits.values()))
        break
    print(os.wait()[1], flush=True)
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


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Where compiled code is kept, what the kernel says and how often it came from there."""
    kept_out = ("NUMBA_", "XDG_", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(kept_out)}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=environment | {"HOME": "/dev/null"}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as server:  # fmt: skip
        assert server.stdin is not None
        assert server.stdout is not None
        asked, answers = server.stdin, server.stdout

        def process_in(sealed: Path) -> tuple[Path, str, int]:
            print(sealed, file=asked, flush=True)
            said = answers.readline()
            assert len(said.split()) > 1, f"status {said}"
            assert answers.readline() == "0\n"
            folder, answer, hits = said.rsplit(maxsplit=2)
            return Path(folder), answer, int(hits)

        yield process_in
        asked.close()


def test_it_is_kept_in_a_temporary_folder_of_ours(sealed: Path, run: Run) -> None:
    folder, answer, hits = run(sealed)
    assert (answer, hits) == ("42", 0)
    assert folder.parent == sealed / "t"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.rglob("*.nbc"))
    assert run(sealed) == (folder, "42", 1)


def test_what_called_a_function_that_changed_is_compiled_again(sealed: Path, run: Run) -> None:
    steps = sealed / "sealed" / "compiled" / "steps.py"
    steps.write_text("from sealed.compiled import njit\n\n@njit(cache=True)\ndef step(n):\n    return n + 1\n")
    kernel = KERNEL.replace("import njit", "import njit\nfrom sealed.compiled.steps import step")
    (sealed / "sealed" / "compiled" / "kernel.py").write_text(kernel.replace("n + 1", "step(n)"))
    folder, answer, hits = run(sealed)
    assert (answer, hits) == ("42", 0)
    assert run(sealed) == (folder, "42", 1)
    steps.write_text(steps.read_text().replace("n + 1", "n + 10"))
    assert run(sealed) == (folder, "51", 0)
    assert run(sealed) == (folder, "51", 1)


def test_what_was_kept_of_a_record_that_has_another_name_is_compiled_again(sealed: Path, run: Run) -> None:
    kernel = sealed / "sealed" / "compiled" / "kernel.py"
    record = "class Pair(NamedTuple):\n    one: int\n\n@njit(cache=True)\ndef raised(pair):\n    return pair.one + 1\n"
    before, after = KERNEL.split("@njit", 1)
    text = f"from typing import NamedTuple\n{before}{record}\n@njit{after}".replace("n + 1", "raised(Pair(n))")
    kernel.write_text(text)
    folder, answer, hits = run(sealed)
    assert (answer, hits) == ("42", 0)
    kernel.write_text(text.replace("Pair", "Both"))
    assert run(sealed) == (folder, "42", 0)
    assert run(sealed) == (folder, "42", 1)


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", [b"", b"cut", b"flipped"], ids=["emptied", "cut", "flipped"])
def test_a_damaged_file_is_compiled_again(sealed: Path, run: Run, kind: str, damage: bytes) -> None:
    folder, _, _ = run(sealed)
    (file,) = folder.rglob(f"*.{kind}")
    whole = file.read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 0x10]) + whole[middle + 1 :]
    file.write_bytes({b"": b"", b"cut": whole[:middle], b"flipped": flipped}[damage])
    assert run(sealed) == (folder, "42", 0)
    assert run(sealed) == (folder, "42", 1)


def test_a_folder_in_a_files_place_is_no_error(sealed: Path, run: Run) -> None:
    folder, _, _ = run(sealed)
    (file,) = folder.rglob("*.nbc")
    file.unlink()
    (file / "inner").mkdir(parents=True)
    assert run(sealed)[1:] == ("42", 0)


def test_a_folder_that_others_can_write_to_is_not_trusted(sealed: Path, run: Run) -> None:
    folder, _, _ = run(sealed)
    folder.chmod(0o777)
    other, answer, hits = run(sealed)
    assert (answer, hits) == ("42", 0)
    assert other != folder
    assert not other.exists(), "one process's own is taken away at its end"
