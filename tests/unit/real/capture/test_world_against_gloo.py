"""Peers like me are exact where ranks hold equal data: every collective against two real gloo processes."""

from __future__ import annotations

import importlib.util
import os
import socket
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from forked import windtunnel

torch = pytest.importorskip("torch")

from windtunnel.real.capture.virtual_world.world import World  # noqa: E402

SCRIPT = Path(__file__).with_name("collectives.py")


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("collectives", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


COLLECTIVES = load()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[Any]]]:
    """What two real processes got."""
    folder = tmp_path_factory.mktemp("gloo")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    done = windtunnel(str(port), str(folder), cwd=folder, env=environment, timeout=120, module=str(SCRIPT))
    assert done.returncode == 0, done.stderr[-2000:]
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in (0, 1)]


@pytest.fixture(scope="module")
def virtual() -> list[dict[str, list[Any]]]:
    """What each of the two got among virtual peers."""
    results = []
    for rank in (0, 1):
        with World(rank, 2):
            torch.distributed.init_process_group("gloo")
            results.append(COLLECTIVES.run(rank, 2))
    return results


@pytest.mark.parametrize("name", list(COLLECTIVES.CASES))
@pytest.mark.parametrize("rank", [0, 1])
def test_a_virtual_peer_gives_what_a_real_one_with_equal_data_gives(
    name: str, rank: int, real: list[dict[str, list[Any]]], virtual: list[dict[str, list[Any]]]
) -> None:
    expected, got = real[rank][name], virtual[rank][name]
    assert len(expected) == len(got)
    for one, other in zip(expected, got, strict=True):
        if isinstance(one, torch.Tensor):
            assert one.dtype == other.dtype
            assert torch.equal(one, other), (one, other)
        else:
            assert one == other
