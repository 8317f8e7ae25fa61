"""Programs of other classes from what was captured, at the speed of the device that the real rank runs on."""

import numpy as np
import pytest

from windtunnel.real.emulate.peers.host_program import Event, HostProgram
from windtunnel.real.emulate.peers.other_classes import (
    KERNELS,
    OPTIMIZER,
    PRODUCTS,
    factors,
    other_classes,
    stretches_of,
)
from windtunnel.studies.programs.communication import Communication
from windtunnel.studies.programs.job import CapturedJob
from windtunnel.studies.programs.program import Op, RankProgram


def price(op: Op) -> tuple[float, int]:
    part = OPTIMIZER if op.phase == "optimizer" else PRODUCTS if op.name == "aten.mm" else KERNELS
    return op.flops, part


def compute(seconds: float, name: str = "aten.mm", phase: str = "forward") -> Op:
    return Op(name, "compute", flops=seconds, phase=phase)


def call(rank: int, kind: str = "all_reduce", group: str = "0") -> Communication:
    return Communication(kind, group, (0, 1), rank, 8)


def program(rank: int, *ops: Op) -> RankProgram:
    return RankProgram(rank, 2, ops)


def test_stretches_are_sums_of_prices_and_unseen_waits_come_before_the_optimizer() -> None:
    one = program(
        0,
        compute(1.0),
        compute(0.5, "aten.add"),
        Op("c10d.allreduce_", "communication", communication=call(0)),  # nobody waits: DDP
        compute(2.0),
        Op("c10d.allreduce_", "communication", communication=call(0)),
        Op("wait", "wait", after=(4,)),
        compute(0.25, "aten.addcdiv", "optimizer"),
    )
    stretches = stretches_of(one, price)
    assert stretches.events == (Event(False, 0), Event(False, 1), Event(True, 1), Event(True, 0))
    assert stretches.parts.tolist() == [[1.0, 0.5, 0.0], [2.0, 0.0, 0.0], [0.0] * 3, [0.0] * 3, [0.0, 0.0, 0.25]]


def staged(rank: int, scale: float) -> RankProgram:
    made = Op("c10d.allreduce_", "communication", communication=call(rank))
    waited = Op("wait", "wait", after=(2,))
    again = Op("wait", "wait", after=(5,))
    return program(
        rank, compute(scale), compute(scale, "aten.add"), made, waited, compute(3 * scale), made, again,
        compute(0.5 * scale, "aten.add"), made, Op("wait", "wait", after=(8,)), compute(scale, phase="optimizer"),
    )  # fmt: skip


def test_other_stages_are_as_much_slower_in_each_part_as_the_real_one_is() -> None:
    job = CapturedJob(2, {0: staged(0, 1.0), 1: staged(1, 2.0)}, np.array([0, 1], np.int32), ())
    same, others = other_classes(job, 0, price)
    assert same == [0]
    own = stretches_of(job.programs[0], price)
    truth = np.array([10.0, 4.0, 7.0])  # seconds per priced second of each part
    measured = HostProgram(0, own.calls, own.events, (own.parts @ truth)[np.newaxis])
    assert factors(own, measured) == pytest.approx(truth, rel=0.02)  # drawn a little to one factor for all
    ((other, ranks),) = others(measured)
    assert ranks == [1]
    assert other.seconds.sum() == pytest.approx(2.0 * measured.seconds.sum())


def test_a_class_that_ran_otherwise_than_captured_gives_one_factor() -> None:
    own = stretches_of(staged(0, 1.0), price)
    measured = HostProgram(0, (call(0),), (Event(False, 0),), np.array([[6.5, 6.5]]))
    assert factors(own, measured) == pytest.approx([2.0] * 3)
