"""MuxServe's placement on plain price laws: what must fit fits, and sharing wins where loads are uneven."""

from __future__ import annotations

import pytest

from windtunnel.errors import SpecError
from windtunnel.studies.serving.placement.muxserve import (
    SIZES,
    SM_LIMIT,
    Mesh,
    Model,
    estimate,
    partitions,
    place_muxserve,
)


def model(name: str, rate: float, size: float = 14e9, sizes: tuple[int, ...] = SIZES) -> Model:
    """A decode step of size / GPUs bytes at 1.5 TB/s and a little per sequence, slower with fewer SMs below half."""

    def decode(gpus: int, share: float, batch: int) -> float:
        return (size / gpus / 1.5e12 + 1e-4 * batch) * max(1.0, 50.0 / share)

    def prefill(gpus: int, batch: int) -> float:
        return 0.01 * batch / gpus * size / 14e9

    return Model(name, rate, size, 5e5, 160.0, 300.0, decode, prefill, sizes)


def test_partitions_are_all_ways_to_cut_and_each_once() -> None:
    found = list(partitions(8))
    assert all(sum(sizes) == 8 for sizes in found)
    assert len(found) == len(set(found)) == 10
    assert max(max(sizes) for sizes in partitions(16, 4)) == 4


def test_an_estimate_never_promises_more_than_is_asked_and_more_rate_never_less() -> None:
    last = 0.0
    for rate in (0.1, 1.0, 5.0, 20.0, 80.0):
        found = estimate([model("a", rate)], Mesh(1, ((0, 100.0),)), 80e9)
        assert found is not None
        assert last - 1e-9 <= found[0] <= rate
        last = found[0]
    assert estimate([model("a", 1.0, 90e9)], Mesh(1, ((0, 100.0),)), 80e9) is None


def test_every_model_is_placed_once_and_meshes_fit() -> None:
    models = [model(f"m{i}", rate) for i, rate in enumerate((20.0, 6.0, 2.0, 1.0, 0.5))] + [
        model("big", 0.5, 120e9, (2, 4, 8))
    ]
    found = place_muxserve(models, 8, 80e9)
    assert sorted(m for mesh in found.meshes for m, _ in mesh.models) == list(range(6))
    for mesh in found.meshes:
        assert len(mesh.models) == 1 or sum(share for _, share in mesh.models) <= SM_LIMIT
        assert sum(models[m].weight_bytes for m, _ in mesh.models) < 80e9 * mesh.gpus
    assert found.partitions == len(list(partitions(8)))
    assert found.runner_up is not None
    assert found.runner_up[0] <= found.throughput_per_s
    assert found.runner_up[1] != found.meshes
    assert sorted(m for mesh in found.runner_up[1] for m, _ in mesh.models) == list(range(6))


def test_sharing_gives_a_hot_model_what_idle_ones_leave() -> None:
    """One hot and three idle models on four GPUs: more together than with a GPU each."""
    models = [model("hot", 40.0), *(model(f"idle{i}", 0.1) for i in range(3))]
    apart = sum((estimate(models, Mesh(1, ((m, 100.0),)), 80e9) or [0.0])[0] for m in range(4))
    assert place_muxserve(models, 4, 80e9).throughput_per_s > 1.3 * apart


def test_a_model_without_a_layout_on_eight_gpus_is_on_no_mesh_of_eight() -> None:
    """Twelve heads, say, are not split in eight."""
    models = [model("twelve", 500.0, sizes=(1, 2, 4)), model("other", 20.0)]
    for mesh in place_muxserve(models, 16, 80e9).meshes:
        assert mesh.gpus < 8 or 0 not in [m for m, _ in mesh.models]


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(SpecError, match="do not fit on 1 GPUs"):
        place_muxserve([model("a", 1.0, 90e9)], 1, 80e9)
