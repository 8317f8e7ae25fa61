from __future__ import annotations

import re
from dataclasses import replace

import pytest

from windtunnel.studies.programs.communication import Communication
from windtunnel.studies.programs.program import MemoryEvent, Op, RankProgram, TensorSpec
from windtunnel.studies.programs.rank_classes.equality import digest, first_difference, kind, memory_facts, peak

STAGES, REPLICAS = 4, 2


def program(rank: int, rows: int = 8) -> RankProgram:
    """A rank of a pipeline of 4 and 2 replicas: a product, a sum over replicas, a message around the pipeline."""
    stage, replica = divmod(rank, REPLICAS)
    pipeline = tuple(range(replica, STAGES * REPLICAS, REPLICAS))
    replicas = (stage * REPLICAS, stage * REPLICAS + 1)
    peer = pipeline[(stage + 1) % STAGES]
    spec = TensorSpec((rows, 4), "float32")
    summed = Communication("all_reduce", f"dp{stage}", replicas, replica, 64)
    sent = Communication("send", f"pp{replica}", pipeline, stage, 8, peer=peer)
    communication = Communication("broadcast", f"dp{stage}", replicas, replica, 4, peer=replicas[0])
    ops = (
        Op("aten.mm", "compute", (spec,), (spec,), 64.0, module="layers.0", phase="forward"),
        Op("c10d.allreduce_", "communication", communication=summed),
        Op("c10d.send", "communication", communication=sent),
        Op("c10d.broadcast_", "communication", communication=communication),
    )
    memory = (MemoryEvent(0, 10 * rank + 1, 100, "activation"), MemoryEvent(1, 10 * rank + 1, -100, "activation"))
    resident = (MemoryEvent(-1, 10 * rank, 50, "parameter"),)
    return RankProgram(rank, STAGES * REPLICAS, ops, memory, resident)


def changed(base: RankProgram, at: int, **fields: object) -> RankProgram:
    ops = list(base.ops)
    ops[at] = replace(ops[at], **fields)  # type: ignore[arg-type]
    return replace(base, ops=tuple(ops))


def call_changed(base: RankProgram, at: int, **fields: object) -> RankProgram:
    call = base.ops[at].communication
    assert call is not None
    return changed(base, at, communication=replace(call, **fields))  # type: ignore[arg-type]


def with_batch(base: RankProgram, rows: tuple[int, ...], **fields: object) -> RankProgram:
    """The host of a GPU puts a batch together first, of documents that are so long."""
    made = []
    for length in rows:
        spec = TensorSpec((length,), "int64", "host")
        made.append(replace(Op("aten.copy_", "compute", (spec, spec)), **fields))  # type: ignore[arg-type]
    ops = [replace(op, after=tuple(at + len(made) for at in op.after)) for op in base.ops]
    return replace(base, ops=(*made, *ops))


def test_how_a_batch_is_put_together_makes_no_class_and_what_a_model_does_on_the_host_does() -> None:
    one, other = (with_batch(changed(program(0), 1, after=(0,)), rows) for rows in ((3, 5), (8,)))
    assert digest(one) == digest(other) == digest(changed(program(0), 1, after=(0,)))
    assert kind(one) == kind(other)
    assert first_difference(one, other) is None
    later = first_difference(one, changed(other, 2, flops=1.0, after=()))
    assert later is not None
    assert later.op == 3  # as it is counted in the whole program
    for fields in ({"phase": "optimizer"}, {"module": "experts.0"}):
        mine, its = (with_batch(program(0), rows, **fields) for rows in ((3, 5), (3, 6)))
        assert digest(mine) != digest(its)
        assert first_difference(mine, its) is not None


def test_ranks_that_differ_in_where_they_are_only_are_one_class() -> None:
    digests = {digest(program(rank)) for rank in range(STAGES * REPLICAS)}
    assert len(digests) == 1
    assert first_difference(program(0), program(7)) is None


@pytest.mark.parametrize(
    ("other", "op", "said"),
    [
        (program(2, rows=7), 0, r"op 0 \(aten.mm, layers.0, forward\): inputs: .*\[8, 4\] on rank 0, .*\[7, 4\] on"),
        (changed(program(2), 0, flops=1.0), 0, "flops"),
        (changed(program(2), 0, module="blocks.0"), 0, "module"),
        (changed(program(2), 1, after=(0,)), 1, "after"),
        (changed(program(2), 1, stream=1), 1, "stream"),
        (call_changed(program(2), 1, bytes=65), 1, "all_reduce of 65 bytes among 2 ranks on rank 2"),
        (call_changed(program(2), 2, peer=0), 2, "peer at 3"),
        (call_changed(program(2), 3, peer=3), 3, "broadcast"),
        (call_changed(program(2), 1, members=(2, 4)), 1, "all_reduce"),
        (call_changed(program(2), 3, group="another"), 3, "broadcast"),
        (replace(program(2), ops=program(2).ops[:3]), 3, "only rank 0 has it"),
        (replace(program(2), memory=(MemoryEvent(0, 1, 101, "activation"),)), -1, "peak: 150 bytes on rank 0, 151"),
        (replace(program(2), resident=(MemoryEvent(-1, 1, 50, "optimizer"),)), -1, "resident optimizer: 0 bytes"),
    ],
)
def test_the_first_difference_is_named(other: RankProgram, op: int, said: str) -> None:
    difference = first_difference(program(0), other)
    assert difference is not None
    assert difference.op == op
    assert re.search(said, difference.text), difference.text
    assert digest(other) != digest(program(0))


def test_memory_is_what_is_resident_and_the_peak_with_its_op() -> None:
    assert peak(program(0)) == (150, 0)
    assert memory_facts(program(0)) == {"resident parameter": 50, "peak": 150}
    assert peak(RankProgram(0, 1, ())) == (0, -1)


def held(rank: int, *modules: str) -> RankProgram:
    """A rank that goes through these modules."""
    spec = TensorSpec((8, 4), "float32")
    ops = tuple(Op("aten.mm", "compute", (spec,), (spec,), 64.0, module=module) for module in modules)
    return RankProgram(rank, 2, ops)


def test_ranks_that_hold_other_experts_are_one_class() -> None:
    names = ("layers.3.experts.{}.w1", "layers.3.experts.{}.w2", "layers.3.experts.{}.w1", "layers.4.experts.{}.w1")
    one = held(0, *(name.format(number) for name, number in zip(names, (0, 0, 1, 0), strict=True)))
    other = held(1, *(name.format(number) for name, number in zip(names, (4, 4, 5, 4), strict=True)))
    again = held(1, *(name.format(number) for name, number in zip(names, (4, 4, 4, 4), strict=True)))
    assert digest(one) == digest(other)
    assert first_difference(one, other) is None
    assert digest(one) != digest(again)
    difference = first_difference(one, again)
    assert difference is not None
    assert difference.op == 2
    assert "module: 'layers.3.experts.1.w1' on rank 0, 'layers.3.experts.4.w1' on rank 1" in difference.text


def test_a_kind_is_what_is_done_in_whatever_order_and_however_often() -> None:
    one = program(0)
    turned = replace(one, ops=(*one.ops[::-1], one.ops[0]))
    assert kind(turned) == kind(one)
    assert digest(turned) != digest(one)
    assert kind(program(0, rows=7)) != kind(one)
    assert kind(call_changed(one, 1, bytes=65)) != kind(one)


def stepped(rank: int, *pieces: int, name: str = "aten._foreach_add_") -> RankProgram:
    """An optimizer's kernel over pieces of parameters, and a step number of each."""
    lists = tuple(TensorSpec((piece,), "float32") for piece in pieces)
    steps = tuple(TensorSpec((), "float32", "host") for _ in pieces)
    moved = 4.0 * (sum(pieces) + len(pieces))
    return RankProgram(rank, 8, (Op(name, "compute", (*lists, *steps), (), 0.0, moved, moved, phase="optimizer"),))


def test_a_kernel_over_lists_counts_elements_however_they_are_cut() -> None:
    assert digest(stepped(0, 700, 300)) == digest(stepped(1, 1000))
    assert first_difference(stepped(0, 700, 300), stepped(1, 1000)) is None
    assert digest(stepped(0, 700, 300)) != digest(stepped(1, 999))
    assert digest(stepped(0, 700, 300, name="aten.add_")) != digest(stepped(1, 1000, name="aten.add_"))
    difference = first_difference(stepped(0, 700, 300), stepped(1, 999))
    assert difference is not None
    assert "1,000 elements on rank 0, 999 on rank 1" in difference.text


def test_pieces_of_other_lengths_are_one_class_and_more_of_them_or_of_other_elements_are_not() -> None:
    def copied(rank: int, *pieces: int) -> RankProgram:
        return replace(
            program(rank), ops=tuple(op for piece in pieces for op in stepped(rank, piece, name="aten.copy_").ops)
        )

    assert digest(copied(0, 700, 300)) == digest(copied(1, 10, 990))
    assert first_difference(copied(0, 700, 300), copied(1, 10, 990)) is None
    assert digest(copied(0, 700, 300)) != digest(copied(1, 1000))
    assert digest(copied(0, 700, 300)) != digest(copied(1, 700, 299))
