from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from windtunnel.physics.cost.measured import cache as kept
from windtunnel.physics.cost.measured import tables
from windtunnel.physics.cost.measured.compaction import without_quantisation

SYSTEM = "a100_sxm"  # the smallest
needs_package = pytest.mark.skipif(kept.package_data() is None, reason="aiconfigurator-core is not installed")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tables.load_tables.cache_clear()
    yield tmp_path / "windtunnel"
    tables.load_tables.cache_clear()


def times(system: str = SYSTEM) -> np.ndarray:
    found = tables.load_tables(system)
    assert found is not None
    return found.gemm["bf16"].grid.log_time


@needs_package
def test_cache_is_written_once_and_read_back_equal(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = times()
    (file,) = cache.iterdir()  # no scratch file is left behind
    assert f"f{tables.FORMAT_VERSION}" in file.name
    assert SYSTEM in file.name
    tables.load_tables.cache_clear()
    monkeypatch.setattr(
        "windtunnel.physics.cost.measured.compaction.compact", lambda folder: pytest.fail("built again")
    )
    np.testing.assert_array_equal(times(), built)


@needs_package
@pytest.mark.parametrize("damage", [b"", b"no archive", None])
def test_damaged_cache_is_built_again(cache: Path, damage: bytes | None) -> None:
    built = times()
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    tables.load_tables.cache_clear()
    np.testing.assert_array_equal(times(), built)
    assert len(file.read_bytes()) == len(whole)


def test_a_cache_file_is_trusted_only_whole(tmp_path: Path) -> None:
    file = tmp_path / "arrays.npz"
    arrays = {"a": np.arange(7.0), "b": np.ones((2, 3), np.float32)}
    assert kept.write_arrays(file, arrays)
    read = kept.read_arrays(file)
    assert read is not None
    assert all(np.array_equal(read[name], arrays[name]) for name in arrays)
    whole = file.read_bytes()
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert kept.read_arrays(file) is None, at
    file.write_bytes(whole[kept.DIGEST_BYTES :])  # a good archive that nobody testifies to
    assert kept.read_arrays(file) is None


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no users")
def test_a_cache_file_of_another_user_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "arrays.npz"
    assert kept.write_arrays(file, {"a": np.arange(7.0)})
    assert kept.read_arrays(file) is not None
    monkeypatch.setattr(os, "getuid", lambda: file.stat().st_uid + 1)
    assert kept.read_arrays(file) is None


@needs_package
def test_folder_that_cannot_be_written_is_passed_over(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setattr(kept, "cache_folders", lambda: iter([tmp_path / "file" / "windtunnel"]))
    assert times().size


@needs_package
def test_a_cached_system_loads_without_pyarrow(cache: Path) -> None:
    times()
    code = f"import sys; from windtunnel.physics.cost.measured import tables; tables.load_tables({SYSTEM!r})"
    code += "; print('pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_no_package_or_no_such_system_means_no_tables(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tables.load_tables("abacus") is None
    tables.load_tables.cache_clear()
    monkeypatch.setattr(kept, "find_spec", lambda name: None)
    assert tables.load_tables(SYSTEM) is None
    assert not cache.exists()


def test_quantisation_is_subtracted_by_row_and_reduction_length() -> None:
    sizes = np.array([1.0, 2.0, 4.0])
    n = sizes[None, :, None]
    rows = np.array([8.0, 16.0])[:, None, None] * np.ones((2, 3, 2))
    bf16 = rows * n
    quantise = 0.3 * rows
    cube = 0.5 * bf16 + quantise
    assert without_quantisation(cube, bf16, "fp8") == pytest.approx(0.5 * bf16)
