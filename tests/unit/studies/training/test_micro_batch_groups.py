"""Interleaving in groups that are not as long as the pipeline: PyTorch's own order, memory, time, flags, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from windtunnel.errors import LayoutError
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.studies.planning.search.bounds import Bounds
from windtunnel.studies.training import predict
from windtunnel.studies.training.launch import launch_flags, read_native
from windtunnel.studies.training.layout import resolve
from windtunnel.studies.training.plan import Plan
from windtunnel.studies.training.schedules import Kind, equal_groups, schedule

CLUSTER = parse_cluster("h100-sxm:8")
MODEL = load_model("llama-3-8b").with_changes(layers=16)
BASE: dict[str, Any] = {"pp": 4, "virtual_stages": 4, "global_batch": 24, "seq_len": 1024}  # 12 micro-batches


@pytest.mark.parametrize(
    ("stages", "micro_batches", "chunks"), [(4, 8, 2), (4, 10, 2), (4, 7, 3), (4, 3, 2), (8, 5, 4)]
)
def test_order_is_that_of_pytorch(stages: int, micro_batches: int, chunks: int) -> None:
    pytest.importorskip("torch")
    from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B

    theirs: Any = object.__new__(ScheduleInterleaved1F1B)  # its order of work needs no stages
    theirs.pp_group_size, theirs.n_local_stages, theirs._n_microbatches = stages, chunks, micro_batches
    theirs.number_of_rounds = max(1, micro_batches // stages)
    theirs.microbatches_per_round = equal_groups(stages, micro_batches)
    ours = schedule("interleaved", stages, micro_batches, chunks, theirs.microbatches_per_round)
    for rank in range(stages):
        window = ours.of_rank(rank)
        found = list(
            zip(
                (ours.kind[window] == Kind.FORWARD).tolist(),
                ours.stage_of[window].tolist(),
                ours.micro_batch[window].tolist(),
                strict=True,
            )
        )
        asked = [one for one in theirs._calculate_single_rank_operations(rank) if one is not None]
        forward = [one.computation_type.name == "FORWARD" for one in asked]
        assert found == [(f, one.stage_index, one.microbatch_index) for f, one in zip(forward, asked, strict=True)]


def step(**plan: Any) -> Any:
    return predict(MODEL, CLUSTER, Plan(**BASE | plan))


def test_longer_groups_hold_more_and_shorter_ones_wait() -> None:
    by_group = {n: step(micro_batch_group=n) for n in (2, 4, 6, 12)}
    peaks = [max(one.peak_reserved_bytes for one in found.memory) for found in by_group.values()]
    assert peaks == sorted(peaks)
    assert peaks[0] < peaks[-1]
    assert by_group[2].step_time_s > 1.1 * by_group[4].step_time_s
    assert step().step_time_s == by_group[4].step_time_s
    assert by_group[6].step_time_s == pytest.approx(by_group[4].step_time_s, rel=0.02)


@pytest.mark.parametrize("group", [2, 3, 5, 8, 12])
def test_bounds_stay_below_what_is_predicted(group: int) -> None:
    layout = resolve(MODEL, CLUSTER, Plan(**BASE | {"micro_batch_group": group}))
    found, bounds = step(micro_batch_group=group), Bounds(0.0)
    assert bounds.step_ns(layout) <= found.step_time_s * 1e9
    assert bounds.memory_bytes(layout) <= max(one.device_bytes for one in found.memory)


def test_pytorch_cuts_into_equal_groups() -> None:
    fields = BASE | {"framework": "torchtitan", "global_batch": 20}  # ten micro-batches over four stages
    layout = resolve(MODEL, CLUSTER, Plan(**fields))
    assert layout.plan.micro_batch_group == 5
    assert "micro_batch_group 5" in layout.defaults
    assert np.bincount(layout.schedule_table().micro_batch).tolist() == [32] * 10
    assert resolve(MODEL, CLUSTER, Plan(**fields | {"global_batch": 24})).plan.micro_batch_group is None
    with pytest.raises(LayoutError, match="11 micro-batches over 4 stages are no 2 equal groups"):
        resolve(MODEL, CLUSTER, Plan(**fields | {"global_batch": 22}))


def test_groups_without_interleaving_are_refused() -> None:
    with pytest.raises(LayoutError, match="which has no groups"):
        resolve(MODEL, CLUSTER, Plan(**BASE | {"virtual_stages": 1, "micro_batch_group": 4}))


def test_megatrons_argument_is_written_and_read(tmp_path: Path) -> None:
    plan = BASE | {"micro_batch_group": 6}
    name, text, left = launch_flags("megatron", plan, 8, "llama-3-8b")
    assert not left
    (tmp_path / name).write_text(text)
    assert read_native(tmp_path / name, 8).fields["micro_batch_group"] == 6
    for refused in (3, 7):  # the last of 12 in groups of 7 is of 5, which is long enough
        left = launch_flags("megatron", BASE | {"micro_batch_group": refused}, 8, "llama-3-8b")[2]
        assert bool(left) == (refused == 3)
    assert launch_flags("torchtitan", BASE | {"micro_batch_group": 6}, 8, "llama-3-8b")[2]
