"""Async tensor parallelism: collectives in pieces beside their products. Laws, then what Inductor matches."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from every_rank import whole_job
from handmade import spec

from windtunnel.physics.cost.communication.collectives import Group, collective, pull
from windtunnel.physics.hardware import parse_cluster
from windtunnel.studies.programs.communication import PULL, Communication
from windtunnel.studies.programs.compiler.fused_program import fused
from windtunnel.studies.programs.compiler.micro_pipeline import FACT, pipelined
from windtunnel.studies.programs.op_shapes import tensor_bytes
from windtunnel.studies.programs.predict import predict_captured
from windtunnel.studies.programs.program import MemoryEvent, Op, RankProgram, TensorSpec

N = 8
GROUP = "tp"


@dataclass
class Layer:
    """One rank's ops, each of which makes one storage; collectives wait at once."""

    rank: int = 0
    rows: int = 16384
    ops: list[Op] = field(default_factory=list)
    memory: list[MemoryEvent] = field(default_factory=list)
    resident: list[MemoryEvent] = field(default_factory=list)
    shapes: list[TensorSpec] = field(default_factory=list)
    by: list[int] = field(default_factory=list)

    def _made(self, of: TensorSpec, by: int) -> int:
        number = len(self.shapes)
        self.shapes.append(of)
        self.by.append(by)
        event = MemoryEvent(by, number, tensor_bytes(of), "activation")
        (self.resident if by < 0 else self.memory).append(event)
        return number

    def given(self, *shape: int) -> int:
        return self._made(spec(*shape), -1)

    def op(self, name: str, *inputs: int, shape: tuple[int, ...], flops: float = 0.0, compiled: int = 1) -> int:
        specs, out = tuple(self.shapes[one] for one in inputs), spec(*shape)
        reads = tuple((one, self.by[one], tensor_bytes(self.shapes[one])) for one in inputs)
        at, number = len(self.ops), len(self.shapes)
        self.ops.append(
            Op(
                f"aten.{name}", "compute", specs, (out,), flops, float(sum(size for *_, size in reads)),
                float(tensor_bytes(out)), tuple(sorted({by for _, by, _ in reads if by >= 0})), phase="forward",
                compiled=compiled, reads=reads, writes=((number, tensor_bytes(out)),),
            )
        )  # fmt: skip
        return self._made(out, at)

    def mm(self, one: int, other: int, compiled: int = 1) -> int:
        (m, k), n = self.shapes[one].shape, self.shapes[other].shape[1]
        return self.op("mm", one, other, shape=(m, n), flops=2.0 * m * n * k, compiled=compiled)

    def call(self, kind: str, value: int) -> int:
        part = self.shapes[value].shape
        rows = part[0] * N if kind == "all_gather" else part[0] // N
        out = spec(rows, *part[1:])
        size = tensor_bytes(out if kind == "all_gather" else self.shapes[value])
        call = Communication(kind, GROUP, tuple(range(N)), self.rank, size, "bfloat16", reduce_op="sum", is_async=True)
        name = {"all_gather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor"}[kind]
        at, moved = len(self.ops), float(tensor_bytes(self.shapes[value]))
        after = (self.by[value],) if self.by[value] >= 0 else ()
        self.ops.append(
            Op(
                f"_c10d_functional.{name}", "communication", (self.shapes[value],), (out,), 0.0, moved, moved, after,
                phase="forward", communication=call, compiled=1,
            )
        )  # fmt: skip
        self.ops.append(Op("wait", "wait", after=(at,), phase="forward", compiled=1))
        return self._made(out, at)

    def program(self, *, asynchronous: bool = True) -> RankProgram:
        facts: dict[str, object] = {FACT: [GROUP]} if asynchronous else {}
        return RankProgram(
            self.rank, N, tuple(self.ops), tuple(self.memory), tuple(self.resident), facts=facts
        )  # fmt: skip


def layer(rank: int = 0, *, along: bool = False, wide: int = 4096, twice: bool = True) -> Layer:
    """A multilayer perceptron: cast, all-gather, a product or two, another, reduce-scatter. `along`: dimension 1."""
    made = Layer(rank)
    x, up, down = made.given(made.rows // N, 4096), made.given(4096, wide), made.given(wide, 4096)
    whole = made.call("all_gather", made.op("neg", x, shape=(made.rows // N, 4096)))
    if along:
        whole = made.op("cat", whole, shape=(made.rows, 4096))
    gate = made.mm(whole, up)
    if twice:
        gate = made.op("mul", gate, made.mm(whole, up), shape=(made.rows, wide))
    out = made.mm(gate, down)
    if along:
        out = made.op("cat", out, shape=(made.rows, 4096))
    made.op("neg", made.call("reduce_scatter", out), shape=(made.rows // N, 4096), compiled=0)
    return made


def times(**how: object) -> tuple[float, float]:
    """Seconds of a step as it is, and with collectives taken apart."""
    found = []
    for asynchronous in (False, True):
        job = whole_job([layer(rank, **how).program(asynchronous=asynchronous) for rank in range(N)])  # type: ignore[arg-type]
        found.append(predict_captured(job, "h100-sxm:8").step_time_s)
    return found[0], found[1]


def pulls(program: RankProgram) -> list[Op]:
    return [op for op in program.ops if op.communication is not None and op.communication.kind == PULL]


@pytest.mark.parametrize("along", [False, True])
def test_the_same_work_in_pieces(along: bool) -> None:
    before = layer(along=along).program()
    after = pipelined(before)
    assert sum(op.flops for op in after.ops) == pytest.approx(sum(op.flops for op in before.ops))
    assert all(earlier < index for index, op in enumerate(after.ops) for earlier in op.after)
    assert all(writer < index for index, op in enumerate(after.ops) for _, writer, _ in op.reads)
    assert not [op for op in after.ops if op.communication is not None and op.communication.kind != PULL]
    whole = [op.communication.bytes for op in before.ops if op.communication is not None]
    assert sum(op.communication.bytes for op in pulls(after)) == sum(whole) * (N - 1) // N  # type: ignore[union-attr]
    assert len([op for op in after.ops if op.name == "aten.mm"]) == 3 * N


def test_who_did_not_ask_for_it_keeps_collectives() -> None:
    program = layer().program(asynchronous=False)
    assert pipelined(program) is program
    other = replace(layer().program(), facts={FACT: ["another group"]})
    assert pipelined(other) is other
    made = layer()
    made.ops = [replace(op, compiled=0) for op in made.ops]
    eager = made.program()
    assert pipelined(eager) is eager


@pytest.mark.parametrize("along", [False, True])
def test_memory_is_consistent_and_copies_are_gone(along: bool) -> None:
    before, after = layer(along=along).program(asynchronous=False), layer(along=along).program()
    for program in (fused(before), fused(after)):
        live = {event.storage: event.bytes for event in program.resident}
        for event in program.memory:
            live[event.storage] = live.get(event.storage, 0) + event.bytes
            assert live[event.storage] in (0, abs(event.bytes))
    made = {event.storage for event in fused(after).memory}
    assert len({event.storage for event in fused(before).memory} - made) == (2 if along else 0)


def test_never_slower_than_what_it_consists_of_and_never_faster_than_its_parts() -> None:
    serial, apart = times()
    cluster = parse_cluster("h100-sxm:8")
    program = pipelined(layer().program())
    links = sum(pull(op.communication.bytes, Group(N, N), cluster).seconds for op in pulls(program))  # type: ignore[union-attr]
    assert apart < serial
    assert apart > links


def test_what_is_saved_is_at_most_the_collectives() -> None:
    serial, apart = times()
    cluster = parse_cluster("h100-sxm:8")
    calls = [op.communication for op in layer().program().ops if op.communication is not None]
    whole = sum(collective(call.kind, call.bytes, Group(N, N), cluster).seconds for call in calls)
    assert 0.0 < serial - apart < 1.1 * whole


def test_wider_products_hide_more() -> None:
    hidden = []
    for wide in (1024, 8192):
        serial, apart = times(wide=wide)
        hidden.append(serial - apart)
    assert hidden[1] > hidden[0]


def test_a_product_that_needs_the_gathered_tensor_twice_stays() -> None:
    made = Layer()
    x = made.given(made.rows // N, made.rows)
    whole = made.call("all_gather", made.op("neg", x, shape=(made.rows // N, made.rows)))
    made.mm(whole, made.op("neg", whole, shape=(made.rows, made.rows)))
    program = made.program()
    assert pipelined(program) is program


def test_a_sum_of_products_is_scattered_whole() -> None:
    """As in the backward pass of two layers with one input: no product makes what is scattered."""
    made = Layer()
    x, w = made.given(made.rows, 4096), made.given(4096, 4096)
    both = made.op("add", made.mm(x, w), made.mm(x, w), shape=(made.rows, 4096))
    made.call("reduce_scatter", both)
    program = made.program()
    assert pipelined(program) is program


def test_a_product_that_is_kept_is_scattered_whole() -> None:
    made = Layer()
    product = made.mm(made.given(made.rows, 4096), made.given(4096, 4096))
    made.call("reduce_scatter", product)
    made.op("neg", product, shape=(made.rows, 4096))
    program = made.program()
    assert pipelined(program) is program


def test_what_comes_between_moves_in_front() -> None:
    """A factor that is made behind the all-gather is there before the first piece."""
    made = Layer()
    x, w = made.given(made.rows // N, 4096), made.given(4096, 4096)
    whole = made.call("all_gather", x)
    factor = made.op("neg", w, shape=(4096, 4096))
    made.mm(whole, factor)
    after = pipelined(made.program())
    assert [op.name for op in after.ops[:2]] == ["aten.neg", "symm_mem.copy"]


def test_a_pull_takes_longer_with_more_bytes_and_is_a_message_across_nodes() -> None:
    cluster = parse_cluster("h100-sxm:16")
    near, far = Group(8, 8), Group(16, 8)
    sizes = [1 << power for power in range(10, 31, 4)]
    seconds = [pull(size, near, cluster).seconds for size in sizes]
    assert seconds == sorted(seconds)
    assert seconds[-1] > sizes[-1] / cluster.scale_up.bandwidth_bytes_per_s
    assert pull(1 << 20, far, cluster) == collective("send_recv", 1 << 20, far, cluster)
    assert pull(1 << 20, Group(1, 1), cluster).seconds == 0.0


@pytest.mark.parametrize("needed", [True, False])
def test_pieces_are_recomputed_all_or_none(needed: bool) -> None:
    made = layer()
    again = {"phase": "backward", "recompute": True}
    made.ops = [replace(op, **again) if op.compiled else op for op in made.ops]  # type: ignore[arg-type]
    if not needed:
        made.ops.pop()
    flops = sum(op.flops for op in made.ops)
    assert sum(op.flops for op in fused(made.program()).ops) == pytest.approx(flops if needed else 0.0)
