"""Fusion of compiled regions: laws on made-up programs, what Inductor is known to do, and a script that compiles."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from handmade import spec

from windtunnel.studies.programs.compiler.fused_program import PREFIX, fused
from windtunnel.studies.programs.op_shapes import tensor_bytes
from windtunnel.studies.programs.program import MemoryEvent, Op, RankProgram
from windtunnel.studies.programs.rank_classes.equality import peak

ROWS, WIDTH = 1024, 512
WHOLE = 2 * ROWS * WIDTH


@dataclass
class Graph:
    """Writes a program op by op, with storages: each op makes one; what nobody reads again is freed."""

    ops: list[Op] = field(default_factory=list)
    made: list[int] = field(default_factory=list)  # values: the op of each; -1: there before
    shapes: list[tuple[int, ...]] = field(default_factory=list)

    def given(self, *shape: int) -> int:
        self.made.append(-1)
        self.shapes.append(shape)
        return len(self.made) - 1

    def add(self, name: str, *inputs: int, shape: tuple[int, ...] = (ROWS, WIDTH), compiled: int = 1,
            phase: str = "forward", recompute: bool = False, flops: float = 0.0) -> int:  # fmt: skip
        specs, out = tuple(spec(*self.shapes[one]) for one in inputs), spec(*shape)
        reads = tuple((one, self.made[one], tensor_bytes(of)) for one, of in zip(inputs, specs, strict=True))
        self.made.append(len(self.ops))
        self.shapes.append(shape)
        number = len(self.made) - 1
        self.ops.append(
            Op(
                f"aten.{name}", "compute", specs, (out,), flops, float(sum(size for *_, size in reads)),
                float(tensor_bytes(out)), tuple(sorted({by for _, by, _ in reads if by >= 0})), phase=phase,
                recompute=recompute, compiled=compiled, reads=reads, writes=((number, tensor_bytes(out)),),
            )
        )  # fmt: skip
        return number

    def mm(self, one: int, other: int, **how: object) -> int:
        rows, columns = self.shapes[one][0], self.shapes[other][1]
        flops = 2.0 * rows * columns * self.shapes[one][1]
        return self.add("mm", one, other, shape=(rows, columns), flops=flops, **how)  # type: ignore[arg-type]

    def program(self) -> RankProgram:
        size = [tensor_bytes(spec(*shape)) for shape in self.shapes]
        last = {storage: index for index, op in enumerate(self.ops) for storage, _, _ in op.reads}
        memory = []
        for index, op in enumerate(self.ops):
            memory += [MemoryEvent(index, storage, held, "activation") for storage, held in op.writes]
            memory += [MemoryEvent(index + 1, one, -size[one], "activation") for one, at in last.items() if at == index]
        memory = [one for one in memory if one.op < len(self.ops) and (one.bytes > 0 or self.made[one.storage] >= 0)]
        resident = [MemoryEvent(-1, one, size[one], "parameter") for one, by in enumerate(self.made) if by < 0]
        return RankProgram(0, 1, tuple(self.ops), tuple(memory), tuple(resident))


def kernels(program: RankProgram) -> list[Op]:
    return [op for op in program.ops if op.name.startswith(PREFIX)]


def moved(program: RankProgram) -> float:
    return sum(op.bytes_read + op.bytes_written for op in program.ops)


def test_a_chain_is_one_read_and_one_write() -> None:
    graph = Graph()
    value = graph.given(ROWS, WIDTH)
    for name in ("mul", "sigmoid", "add", "neg"):
        value = graph.add(name, value)
    graph.add("mm", value, compiled=0)
    (kernel,) = kernels(fused(graph.program()))
    assert (kernel.bytes_read, kernel.bytes_written) == (WHOLE, WHOLE)


def test_nothing_is_fused_without_compilation_or_across_what_is_not() -> None:
    graph = Graph()
    x, w = graph.given(ROWS, WIDTH), graph.given(WIDTH, WIDTH)
    plain = replace(graph.program(), ops=())
    assert fused(plain) is plain
    silu = graph.add("silu", x)
    product = graph.mm(silu, w)
    doubled = graph.add("mul", product)
    other = graph.add("mul", doubled, compiled=2)
    graph.mm(other, w, compiled=0)
    names = [op.name.removeprefix(f"{PREFIX}_").removeprefix("aten.") for op in fused(graph.program()).ops]
    assert names == ["silu", "mm", "mul", "mul", "mm"]


def test_a_value_within_a_kernel_is_never_allocated() -> None:
    graph = Graph()
    x, w = graph.given(ROWS, WIDTH), graph.given(WIDTH, WIDTH)
    graph.add("max", graph.add("mul", graph.add("exp", graph.mm(x, w))), shape=(), compiled=0)
    before, after = graph.program(), fused(graph.program())
    allocated = {event.storage for event in after.memory if event.bytes > 0}
    assert allocated == {event.storage for event in before.memory if event.bytes > 0} - {3}
    # Its output is written over its input, which nobody needs any more: one of the two at a time.
    assert peak(after)[0] == pytest.approx(peak(before)[0] - WHOLE, abs=8)


def test_a_norm_is_read_twice_and_written_once() -> None:
    """Norm, largest element, and the cast that it scales: two kernels, and the norm's output is not written."""
    graph = Graph()
    x, w = graph.given(ROWS, WIDTH), graph.given(WIDTH, WIDTH)
    normal = graph.add("_softmax", x)
    largest = graph.add("max", graph.add("abs", normal), shape=())
    cast = graph.add("_to_copy", graph.add("mul", normal, largest))
    graph.mm(cast, w)
    first, second = kernels(fused(graph.program()))
    assert first.bytes_read == WHOLE
    assert first.bytes_written < 0.01 * WHOLE
    assert second.bytes_read == pytest.approx(WHOLE, rel=0.01)
    assert second.bytes_written == WHOLE


def test_what_is_computed_twice_is_computed_once() -> None:
    graph = Graph()
    x, w = graph.given(ROWS, WIDTH), graph.given(WIDTH, WIDTH)
    for _ in range(3):
        graph.mm(graph.add("_to_copy", x), w)
    (kernel,) = kernels(fused(graph.program()))
    assert (kernel.bytes_read, kernel.bytes_written) == (WHOLE, WHOLE)


def test_other_parts_of_a_tensor_are_not_the_same() -> None:
    graph = Graph()
    x, w = graph.given(ROWS, WIDTH), graph.given(WIDTH, WIDTH)
    for part in range(2):
        value = graph.add("neg", x)
        graph.ops[-1] = replace(graph.ops[-1], lies=part)
        graph.mm(value, w)
    assert sum(kernel.bytes_written for kernel in kernels(fused(graph.program()))) == 2 * WHOLE


def test_recomputation_comes_when_it_is_needed() -> None:
    graph = Graph()
    w, gradient = graph.given(WIDTH, WIDTH), graph.given(ROWS, WIDTH)
    first = graph.mm(graph.given(ROWS, WIDTH), w)
    second = graph.mm(graph.add("exp", first), w)
    backward = {"phase": "backward"}
    again = graph.mm(graph.add("exp", first, recompute=True, **backward), w, recompute=True, **backward)  # type: ignore[arg-type]
    graph.add("exp", again, recompute=True, **backward)  # type: ignore[arg-type]
    by_second = graph.mm(gradient, w, **backward)
    graph.mm(graph.add("mul", by_second, again, **backward), w, **backward)  # type: ignore[arg-type]
    graph.mm(second, w, compiled=0)
    ops = [op for op in fused(graph.program()).ops if op.phase == "backward"]
    assert [(op.name.split(".")[1], op.recompute) for op in ops] == [
        ("mm", False), ("fused_exp", True), ("mm", True), ("fused_mul", False), ("mm", False),
    ]  # fmt: skip


def test_a_cheap_value_is_not_kept_for_the_backward() -> None:
    """silu(gate) * up: the backward makes silu again from gate, which it reads anyway."""
    graph = Graph()
    x, w, gradient = graph.given(ROWS, WIDTH), graph.given(WIDTH, WIDTH), graph.given(ROWS, WIDTH)
    gate, up = graph.mm(x, w), graph.mm(x, w)
    silu = graph.add("silu", gate)
    graph.mm(graph.add("mul", silu, up), w)
    for one in (silu, up):
        graph.mm(graph.add("mul", gradient, one, phase="backward"), w, phase="backward")
    graph.mm(graph.add("silu_backward", gradient, gate, phase="backward"), w, phase="backward")
    after = fused(graph.program())
    assert silu not in {event.storage for event in after.memory}
    assert gate in {event.storage for event in after.memory}


NAMES = ("mul", "add", "exp", "mm", "max", "_softmax", "_to_copy", "complex")


@st.composite
def programs(draw: st.DrawFn) -> RankProgram:
    graph = Graph()
    graph.given(ROWS, WIDTH)
    graph.given(WIDTH, WIDTH)
    whole = [0]
    halfway = draw(st.integers(3, 12))
    for index in range(draw(st.integers(4, 24))):
        name = draw(st.sampled_from(NAMES))
        phase = {"phase": "backward"} if index >= halfway else {}
        recompute = bool(phase) and draw(st.booleans())
        compiled = draw(st.sampled_from((1, 1, 1, 2, 0)))
        one, other = draw(st.sampled_from(whole)), draw(st.sampled_from(whole))
        how = {"compiled": compiled, "recompute": recompute, **phase}
        if name == "mm":
            whole.append(graph.mm(one, 1, **how))
        elif name == "max":
            scale = graph.add("max", one, shape=(), **how)  # type: ignore[arg-type]
            whole.append(graph.add("mul", one, scale, **how))  # type: ignore[arg-type]
        elif name in ("mul", "add"):
            whole.append(graph.add(name, one, other, **how))  # type: ignore[arg-type]
        else:
            whole.append(graph.add(name, one, **how))  # type: ignore[arg-type]
    return graph.program()


@settings(max_examples=150, deadline=None)
@given(programs())
def test_laws(program: RankProgram) -> None:
    after = fused(program)
    # the same work but for what is recomputed without need, never more traffic, nothing before what it needs
    flops = [
        [sum(op.flops for op in one.ops if op.recompute is again) for again in (False, True)]
        for one in (program, after)
    ]
    assert flops[1][0] == flops[0][0]
    assert flops[1][1] <= flops[0][1]
    assert moved(after) <= moved(program)
    assert all(earlier < index for index, op in enumerate(after.ops) for earlier in op.after)
    # what no compiler touches runs as it was, in its order
    assert [op.name for op in after.ops if not op.compiled] == [op.name for op in program.ops if not op.compiled]
    # a storage comes once and goes at most once, after it came
    live: dict[int, int] = {event.storage: event.bytes for event in after.resident}
    for event in after.memory:
        live[event.storage] = live.get(event.storage, 0) + event.bytes
        assert live[event.storage] in (0, abs(event.bytes))
    assert all(0 <= event.op < len(after.ops) for event in after.memory)
    assert [event.op for event in after.memory] == sorted(event.op for event in after.memory)


def test_a_script_that_compiles() -> None:
    """Its regions are marked, backward and recomputation included, and the optimizer is not among them."""
    torch = pytest.importorskip("torch")
    from small_models import Decoder, recorded, train
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    def job(device: str) -> None:
        model = Decoder()
        for index, layer in enumerate(model.layers):
            model.layers[index] = torch.compile(checkpoint_wrapper(layer))
        train(model)

    program = recorded(job, fake="cpu").program
    regions = {op.compiled for op in program.ops}
    assert regions == {0, 1, 2}
    for op in program.ops:
        assert bool(op.compiled) == op.module.startswith("layers."), (op.name, op.module, op.phase)
    assert any(op.recompute for op in program.ops if op.compiled)
    after = fused(program)
    assert sum(op.flops for op in after.ops if not op.recompute) == sum(
        op.flops for op in program.ops if not op.recompute
    )
    again = [sum(op.flops for op in one.ops if op.recompute) for one in (program, after)]
    assert 0.0 < again[1] <= again[0]
    assert moved(after) < moved(program)
    assert len(kernels(after)) < sum(op.compiled > 0 for op in program.ops)
    assert peak(after)[0] <= peak(program)[0]
