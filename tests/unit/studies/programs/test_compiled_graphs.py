"""What the compiler would see of a script: where its graphs end, what equal ops are, and what it costs to call them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from every_rank import whole_job
from handmade import spec

from windtunnel.physics.graph.program import OpKind
from windtunnel.physics.hardware import parse_cluster
from windtunnel.studies.programs.communication import Communication
from windtunnel.studies.programs.compiler.fused_program import PREFIX, fused
from windtunnel.studies.programs.compiler.traced_waits import with_traced_waits
from windtunnel.studies.programs.lowering.pricing import op_pricer
from windtunnel.studies.programs.lowering.template import StringTable, template_of
from windtunnel.studies.programs.program import MemoryEvent, Op, RankProgram

SIZE = 2 * 1024 * 1024
WHOLE = spec(1024, 1024)


def step(function: Callable[[Any], Any]) -> RankProgram:
    """A recorded step in which this is compiled."""
    torch = pytest.importorskip("torch")
    from small_models import recorded

    def job(_: str) -> None:
        compiled = torch.compile(function)
        weight = torch.nn.Parameter(torch.ones(64, 64))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        model = torch.nn.Module()
        model.register_parameter("weight", weight)
        model.forward = lambda x: compiled(x * model.weight)  # type: ignore[method-assign]
        for _step in range(2):
            model(torch.ones(64, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    found: RankProgram = recorded(job, fake="cpu").program
    return found


def regions(program: RankProgram, phase: str) -> list[int]:
    return list(dict.fromkeys(op.compiled for op in program.ops if op.phase == phase and op.compiled))


# ---- where graphs end


def test_one_call_is_one_graph() -> None:
    program = step(lambda x: (x.exp() * 2).sin())
    assert len(regions(program, "forward")) == 1
    assert regions(program, "backward") == regions(program, "forward")


def test_reading_a_tensor_ends_a_graph() -> None:
    def function(x: Any) -> Any:
        y = x.exp()
        return y.sin() * (2.0 if y.sum().item() > 0 else 1.0)

    program = step(function)
    assert len(regions(program, "forward")) == 2
    assert sorted(regions(program, "backward")) == sorted(regions(program, "forward"))


def test_a_script_may_ask_for_the_end_of_a_graph() -> None:
    torch = pytest.importorskip("torch")

    def function(x: Any) -> Any:
        y = x.exp()
        torch._dynamo.graph_break()
        return y.sin()

    assert len(regions(step(function), "forward")) == 2


def test_what_is_kept_out_of_graphs_is_of_none() -> None:
    torch = pytest.importorskip("torch")

    def function(x: Any) -> Any:
        return torch.compiler.disable(lambda y: y.sin())(x.exp()).cos()

    program = step(function)
    assert len(regions(program, "forward")) == 2
    outside = [op.name for op in program.ops if op.phase == "forward" and not op.compiled]
    assert "aten.sin" in outside
    assert not {"aten.exp", "aten.cos"} & set(outside)


# ---- what is computed twice


def written(function: Callable[[Any], Any]) -> float:
    return sum(
        op.bytes_written for op in fused(step(function)).ops if op.name.startswith(PREFIX) and op.phase == "forward"
    )


def test_equal_ops_with_other_numbers_are_two() -> None:
    def same(x: Any) -> Any:
        y = x.exp() @ x
        return (y * 2).cumsum(0) + (y * 2).cumsum(0)

    def other(x: Any) -> Any:
        y = x.exp() @ x
        return (y * 2).cumsum(0) + (y * 3).cumsum(0)

    assert written(other) > written(same)


# ---- what is recomputed without need


def test_a_product_that_is_recomputed_for_nobody_is_left_out() -> None:
    product = Op(
        "aten.mm", "compute", (WHOLE, WHOLE), (WHOLE,), 2.0 * 1024**3, 2.0 * SIZE, 1.0 * SIZE, (), phase="backward",
        recompute=True, compiled=1, reads=((0, -1, SIZE), (1, -1, SIZE)), writes=((2, SIZE),),
    )  # fmt: skip
    used = replace(
        product, name="aten.neg", inputs=(WHOLE,), flops=0.0, recompute=False, after=(0,), reads=((2, 0, SIZE),),
        writes=((3, SIZE),),
    )  # fmt: skip
    resident = tuple(MemoryEvent(-1, one, SIZE, "parameter") for one in (0, 1))
    memory = (MemoryEvent(0, 2, SIZE, "activation"),)
    needed = RankProgram(0, 1, (product, used), memory, resident)
    alone = RankProgram(0, 1, (product, replace(used, after=(), reads=((0, -1, SIZE),))), memory, resident)
    assert sum(op.flops for op in fused(needed).ops) == product.flops
    assert sum(op.flops for op in fused(alone).ops) == 0.0
    assert not [event for event in fused(alone).memory if event.storage == 2]
    eager = replace(alone, ops=tuple(replace(op, compiled=0) for op in alone.ops))
    assert sum(op.flops for op in fused(eager).ops) == product.flops


def gathered(recompute: bool, needed: bool) -> RankProgram:
    """A collective of a compiled graph, a product beside it, and the wait behind that."""
    call = Communication("all_gather", "g", (0, 1), 0, 2 * SIZE, "bfloat16", is_async=True)
    both = {"phase": "backward", "recompute": recompute, "compiled": 1}
    gather = Op(
        "_c10d_functional.all_gather_into_tensor", "communication", (WHOLE,), (spec(2048, 1024),), communication=call,
        **both,
    )  # type: ignore[arg-type] # fmt: skip
    product = Op(
        "aten.mm", "compute", (WHOLE, WHOLE), (WHOLE,), 2.0 * 1024**3, 2.0 * SIZE, 1.0 * SIZE,
        phase="backward", compiled=1, reads=((0, -1, SIZE), (1, -1, SIZE)), writes=((3, SIZE),),
    )  # fmt: skip
    wait = Op("wait", "wait", after=(0,), phase="backward")
    taken = ((2, 0, 2 * SIZE),) if needed else ((3, 1, SIZE),)
    reader = replace(product, name="aten.neg", flops=0.0, after=(0, 1), reads=taken, writes=((4, SIZE),))
    resident = tuple(MemoryEvent(-1, one, SIZE, "parameter") for one in (0, 1))
    memory = (MemoryEvent(0, 2, 2 * SIZE, "communication"), MemoryEvent(1, 3, SIZE, "activation"))
    return RankProgram(0, 2, (gather, product, wait, reader), memory, resident)


def test_a_collective_that_is_recomputed_for_nobody_is_left_out() -> None:
    kinds = [[op.kind for op in fused(gathered(True, needed)).ops] for needed in (True, False)]
    assert "communication" in kinds[0]
    assert not {"communication", "wait"} & set(kinds[1])


# ---- where graphs wait


def test_a_graph_waits_where_it_calls() -> None:
    program = gathered(recompute=False, needed=True)
    assert [op.kind for op in with_traced_waits(program).ops] == ["communication", "wait", "compute", "compute"]
    assert with_traced_waits(with_traced_waits(program)) is not None
    eager = replace(program, ops=tuple(replace(op, compiled=0) for op in program.ops))
    assert with_traced_waits(eager) is eager


def test_waiting_at_once_exposes_the_collective() -> None:
    from windtunnel.studies.programs.predict import predict_captured

    def seconds(compiled: int) -> float:
        programs = [gathered(recompute=False, needed=True) for _ in range(2)]
        programs = [
            replace(
                one,
                rank=rank,
                ops=tuple(
                    replace(
                        op,
                        compiled=compiled if op.communication is not None else 0,
                        communication=replace(op.communication, position=rank) if op.communication else None,
                    )
                    for op in one.ops
                ),
            )
            for rank, one in enumerate(programs)
        ]
        return predict_captured(whole_job(programs), "h100-sxm:2").step_time_s

    assert seconds(1) > seconds(0)


# ---- what launching costs


def host_ns(compiled: tuple[int, ...]) -> int:
    """What the host takes to launch one product per entry, each of that graph; 0: of none."""
    product = Op("aten.mm", "compute", (WHOLE, WHOLE), (WHOLE,), 2.0 * 1024**3, 2.0 * SIZE, 1.0 * SIZE, phase="forward")
    program = RankProgram(0, 1, tuple(replace(product, compiled=one) for one in compiled))
    pricer = op_pricer(parse_cluster("h100-sxm:1"))
    made = template_of(program, whole_job([program]), pricer, StringTable(), 0.0)
    return int(made.duration_ns[made.kind == OpKind.HOST].sum())


def test_kernels_of_a_graph_are_launched_for_less_and_each_graph_is_called_once() -> None:
    costs = op_pricer(parse_cluster("h100-sxm:1"))
    launch, eager, call = (
        round(seconds * 1e9) for seconds in (costs.compiled_launch_s, costs.launch_s, costs.compiled_call_s)
    )
    assert launch < eager < call
    assert host_ns((0, 0, 0)) == 3 * eager
    assert host_ns((1, 1, 1)) == 3 * launch + call
    assert host_ns((1, 1, 2)) == 3 * launch + 2 * call
    assert host_ns((1, 0, 1)) == 2 * launch + eager + call
