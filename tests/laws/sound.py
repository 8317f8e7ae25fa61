"""What holds of every Result, whatever it was made from."""

from __future__ import annotations

import json
import math

import pytest

from windtunnel.physics.step.result import Result


def assert_sound(result: Result) -> None:
    """What holds of every Result, feasible or not."""
    step = result.step_time_ns
    assert 0 < result.step_time_p5_ns <= step <= result.step_time_p95_ns
    assert sum(result.breakdown_ns.values()) == step
    assert min(result.breakdown_ns.values()) >= 0
    for stage in result.stages:
        assert sum(stage.breakdown_ns.values()) == step, stage.stage
        assert min(stage.breakdown_ns.values()) >= 0
    assert sum(stage.ranks for stage in result.stages) == result.n_gpus
    assert sum(stage.ranks for stage in result.memory) == result.n_gpus
    for memory in result.memory:
        assert sum(memory.categories.values()) == memory.peak_allocated_bytes
        assert min(memory.categories.values()) >= 0
        assert memory.peak_allocated_bytes <= memory.peak_reserved_bytes <= memory.device_bytes
        assert 0 <= memory.peak_time_ns <= step
        assert all(0 <= t <= step and b >= 0 for t, b in memory.timeline)
    assert math.isclose(sum(result.provenance.values()), 1.0, rel_tol=1e-9)
    assert min(result.provenance.values()) >= 0
    assert 0 < result.mfu <= result.hfu <= 1
    assert result.tokens_per_s == pytest.approx(result.tokens_per_step / result.step_time_s)
    assert result.tokens_per_s_per_gpu * result.n_gpus == pytest.approx(result.tokens_per_s)
    assert min(result.traffic_bytes.values(), default=0) >= 0
    full = max(memory.device_bytes for memory in result.memory)
    assert (result.status == "infeasible") == (full > result.memory_capacity_bytes) == (result.infeasible is not None)
    if result.infeasible:
        assert result.infeasible.needed_bytes == full
    for limit in result.limits:
        assert 0 < limit.share <= 1
        assert limit.step_time_s_without == pytest.approx(result.step_time_s * (1 - limit.share))
    for op in result.excerpt:
        assert 0 <= op.start_ns < op.end_ns <= step
        assert not op.category.startswith("exposed")
    json.loads(result.to_json(), parse_constant=pytest.fail)  # NaN and infinities end here
