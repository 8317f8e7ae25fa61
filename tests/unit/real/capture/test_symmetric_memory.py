"""Ops that exchange and multiply at once, and what a script asks of the compiler and the allocator: as recorded."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from small_models import rank_of  # noqa: E402

from windtunnel.real.capture.recorder.recorder import Recorder  # noqa: E402
from windtunnel.studies.programs.compiler.fused_program import fused  # noqa: E402
from windtunnel.studies.programs.compiler.micro_pipeline import FACT  # noqa: E402
from windtunnel.studies.programs.program import RankProgram  # noqa: E402

WORLD, ROWS, WIDTH = 8, 1024, 512


def recorded(step: Any, *, symmetric: bool = False) -> tuple[RankProgram, str]:
    """A step on a pretended GPU of a virtual world, and the name of its group."""
    with rank_of(WORLD, 3, fake="cuda") as world, Recorder(3, WORLD, world) as recorder:
        group = dist.group.WORLD.group_name
        if symmetric:
            from torch.distributed._symmetric_memory import enable_symm_mem_for_group

            enable_symm_mem_for_group(group)
        recorder.begin_step()
        step(group)
        return recorder.end_step(), group


def kinds(program: RankProgram) -> Counter[str]:
    return Counter(op.communication.kind for op in program.ops if op.communication is not None)


def test_a_fused_gather_is_its_parts_and_runs_in_pieces() -> None:
    def step(group: str) -> None:
        part, factor = torch.empty(ROWS, WIDTH, device="cuda"), torch.empty(WIDTH, 2 * WIDTH, device="cuda")
        whole, (product,) = torch.ops.symm_mem.fused_all_gather_matmul(part, [factor], 0, group)
        assert whole.shape == (WORLD * ROWS, WIDTH)
        assert product.shape == (WORLD * ROWS, 2 * WIDTH)
        product + 1

    program, group = recorded(step)
    assert program.facts[FACT] == [group]
    assert kinds(program) == {"all_gather": 1}
    after = fused(program)
    assert kinds(after) == {"pull": WORLD - 1}
    assert sum(op.flops for op in after.ops) == 2.0 * WORLD * ROWS * WIDTH * 2 * WIDTH
    assert [op.name for op in after.ops].count("aten.mm") == WORLD


def test_a_fused_scatter_is_its_parts_and_runs_in_pieces() -> None:
    def step(group: str) -> None:
        left, right = torch.empty(WORLD * ROWS, WIDTH, device="cuda"), torch.empty(WIDTH, WIDTH, device="cuda")
        part = torch.ops.symm_mem.fused_matmul_reduce_scatter(left, right, "sum", 0, group)
        assert part.shape == (ROWS, WIDTH)
        part + 1

    program, _ = recorded(step)
    assert kinds(program) == {"reduce_scatter": 1}
    after = fused(program)
    assert kinds(after) == {"pull": WORLD - 1}
    assert sum(op.flops for op in after.ops) == 2.0 * WORLD * ROWS * WIDTH * WIDTH


def test_of_the_compiler_it_is_asked_with_symmetric_memory_only() -> None:
    import torch._inductor.config as inductor

    def step(_: str) -> None:
        torch.empty(8, device="cuda") + 1

    assert FACT not in recorded(step, symmetric=True)[0].facts
    with inductor.patch(_micro_pipeline_tp=True):
        program, group = recorded(step, symmetric=True)
    assert group in program.facts[FACT]  # type: ignore[operator]


def test_the_allocators_settings_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(_: str) -> None:
        torch.empty(8, device="cuda") + 1

    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert recorded(step)[0].facts["allocator"] == "expandable_segments:True"
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF")
    assert "allocator" not in recorded(step)[0].facts
