"""Replicas of a script that runs on one rank: its gradients once over, after the ops that make them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from handmade import Grid, Script, job_of

from windtunnel.errors import LayoutError
from windtunnel.studies.programs.job import CapturedJob
from windtunnel.studies.programs.predict import predict_captured
from windtunnel.studies.programs.program import MemoryEvent
from windtunnel.studies.programs.replicas import FIRST_BUCKET, replicated

LAYERS, MICRO_BATCHES, ROWS, WIDTH = 6, 2, 4096, 2048
GRADIENT = 4 * WIDTH * WIDTH  # bytes of a layer


def alone(**changes: object) -> CapturedJob:
    """One rank: products forward and back, a gradient for each layer, an update."""
    script = Script(0, 1)
    script.resident = [MemoryEvent(-1, layer, GRADIENT, "parameter") for layer in range(LAYERS)]
    for script.micro_batch in range(MICRO_BATCHES):
        for script.phase, order in (("forward", range(LAYERS)), ("backward", reversed(range(LAYERS)))):
            before: tuple[int, ...] = ()
            for layer in order:
                script.module = f"layers.{layer}"
                before = (script.mm(ROWS, WIDTH, WIDTH, before),)
                if script.phase == "backward":
                    made = script.mm(WIDTH, WIDTH, ROWS, before)
                    if not script.micro_batch:
                        script.memory.append(MemoryEvent(made, LAYERS + layer, GRADIENT, "gradient"))
    script.phase, script.module = "optimizer", ""
    script.move("_fused_adamw_", 3 * LAYERS * WIDTH * WIDTH)
    return CapturedJob(1, {0: script.program()}, np.zeros(1, np.int32), (), **changes)  # type: ignore[arg-type]


def test_every_gradient_goes_out_once_behind_what_makes_it_and_all_are_waited_for() -> None:
    ops = replicated(alone(), 8).programs[0].ops
    calls = {number: op for number, op in enumerate(ops) if op.communication is not None}
    sizes = [op.communication.bytes for op in calls.values() if op.communication]
    assert sum(sizes) == LAYERS * GRADIENT
    assert sizes[0] >= FIRST_BUCKET
    for number, op in calls.items():
        assert op.micro_batch == MICRO_BATCHES - 1
        assert ops[number - 1].after == (number - 2,)  # copied when the op before it is done
    (wait,) = (number for number, op in enumerate(ops) if op.kind == "wait")
    assert ops[wait].after == tuple(calls)
    assert ops[wait + 1].phase == "optimizer"
    assert all(one < number for number, op in enumerate(ops) for one in op.after)


def test_more_replicas_do_more_in_no_less_time() -> None:
    found = [predict_captured(alone(), f"h100-sxm:{gpus}") for gpus in (1, 2, 8, 64)]
    steps = [one.step_time_s for one in found]
    assert steps == sorted(steps)
    assert [sum(one.traffic_bytes.values()) for one in found] == [0, *[LAYERS * GRADIENT] * 3]
    assert [one.n_gpus for one in found] == [1, 2, 8, 64]
    flops = [one.model_tflops_per_gpu * one.step_time_s for one in found]
    assert flops == pytest.approx([flops[0]] * 4)
    assert any("8 replicas of it" in text for text in found[2].warnings)


def test_tokens_that_were_given_are_those_of_all_replicas() -> None:
    assert replicated(alone(facts={"tokens_per_step": 1000}), 4).facts["tokens_per_step"] == 4000


def test_what_cannot_be_replicated_is_one_clear_error() -> None:
    job = alone()
    compiled = tuple(replace(op, compiled=1) for op in job.programs[0].ops)
    for script, said in (
        (replace(job, programs={0: replace(job.programs[0], ops=compiled)}), "is compiled"),
        (replace(job, programs={0: replace(job.programs[0], memory=())}), "makes no gradients"),
        (job_of(Grid(1, 1, 1)), "collectives of its own"),
    ):
        with pytest.raises(LayoutError, match=said):
            predict_captured(script, "h100-sxm:8")
