"""A workload through a real engine under several policies, and through its simulation: measured beside predicted.

The engine's clock goes on by the time that each step takes, and jumps to the next arrival where it is idle. A machine
that others use as well is not always as fast: between steps a fixed step is timed now and then, and the prediction is
of a machine that is as many times slower as that step was. Nothing of the run itself enters its prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from windtunnel.errors import SpecError, UserError
from windtunnel.questions.asked.serve.real import ServeReal
from windtunnel.questions.header import Answer
from windtunnel.real.serving.carry_out import Carrier
from windtunnel.real.serving.llama import Llama, Shape
from windtunnel.real.serving.prices import Yardstick, fit_prices, measure, times_of
from windtunnel.studies.serving.batching import Batching, ContinuousBatching, Plan
from windtunnel.studies.serving.batching.skip_join import SkipJoinBatching
from windtunnel.studies.serving.loop import simulate
from windtunnel.studies.serving.measures import Distribution, distribution, stamps_of
from windtunnel.studies.serving.replica.rules import Rules
from windtunnel.studies.serving.replica.sequence import Sequence
from windtunnel.studies.serving.replica.stepwise import StepwiseReplica
from windtunnel.studies.serving.step_time.times import TICKS_PER_NS, StepTimes
from windtunnel.studies.serving.workload.lengths import arrivals
from windtunnel.studies.serving.workload.requests import Workload

BATCH, BLOCK, BLOCKS, HOST_BLOCKS = 8, 16, 192, 1024
CHUNK, WHOLE = 128, 512  # tokens of a step with and without chunked prefill
QUANTUM_STEPS = 4  # decode steps of a full batch that the first queue of the MLFQ grants
LOAD = 0.85  # of what FCFS can carry, where no rate is given
REQUESTS = 100
PILOT = 32  # other requests that run first, at once and spaced out, so that steps in service are measured too
SHORT, LONG, LONG_SHARE = (4, 24), (80, 240), 0.2  # answers
PROMPTS = (16, 256)

POLICIES = ("fcfs", "fcfs, whole prompts", "skip-join mlfq")


@dataclass(frozen=True)
class Side:
    """One policy, one side."""

    ttft_s: Distribution | None
    tpot_s: Distribution | None
    e2e_s: Distribution | None
    output_tokens_per_s: float
    steps: int
    preemptions: int


@dataclass(frozen=True)
class PolicyRun:
    """Both sides of a policy, and how its run went."""

    measured: Side
    predicted: Side
    machine_slower: float  # a fixed step during the run over the same step while steps were measured
    swapped_blocks: int
    computing_s: float
    wall_s: float


@dataclass(frozen=True)
class Compared(Answer):
    """The comparison of all policies."""

    device: str
    rate_per_s: float
    requests: int
    steps_measured: int
    step_fit_error: float  # mean relative error of single steps
    policies: Mapping[str, PolicyRun]


def make_prompts(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(prompts, answers): short and long answers mixed, which is what preemption is for."""
    draw = np.random.default_rng([seed, 7])
    prompts = draw.integers(PROMPTS[0], PROMPTS[1] + 1, count)
    long = draw.random(count) < LONG_SHARE
    answers = np.where(long, draw.integers(*LONG, count), draw.integers(*SHORT, count))
    return prompts.astype(np.int64), answers.astype(np.int64)


def compare(
    device: str | None = None, *, requests: int = REQUESTS, rate: float | None = None, cv: float = 1.0, seed: int = 0
) -> Compared:
    """Measure steps, predict each policy, run each policy. Raises UserError where there is no torch."""
    try:
        import torch
    except ModuleNotFoundError:
        raise UserError("serve real needs PyTorch; install it with: pip install 'windtunnel[torch]'") from None
    if not 2 <= requests <= 100_000:
        raise SpecError("--requests", requests, "give 2 to 100000")
    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so that this thread's time is the engine's
    try:
        return _compare(chosen, requests, rate, cv, seed)
    finally:
        torch.set_num_threads(threads)


def answer(question: ServeReal) -> Compared:
    """What `serve real` asks."""
    return compare(requests=question.requests, rate=question.rate, cv=question.cv, seed=question.seed)


def _compare(device: str, requests: int, rate: float | None, cv: float, seed: int) -> Compared:
    shape = Shape()
    model = Llama(shape, BLOCKS, BLOCK, device, seed)
    pilot = Carrier(model, BLOCKS, ContinuousBatching(), seed)
    pilot.log = []
    yardstick = Yardstick(Llama(shape, BATCH * 128 // BLOCK, BLOCK, device, seed), pilot.now_ns, BATCH)
    pilot.look = yardstick.look
    steps = measure(model, pilot.now_ns, BLOCKS, BATCH, WHOLE, yardstick.look)
    first = times_of(fit_prices(steps)[0], shape.layers)
    few = make_prompts(PILOT, seed + 1)
    spaced = arrivals(PILOT, LOAD * _capacity(first, *few), cv, seed)
    for arrival in (np.zeros(PILOT, np.int64), spaced):  # full batches, and small ones
        _run("fcfs", first, Workload(*few, arrival), pilot.policy, pilot)  # with the policy and the bookkeeping
    steps += pilot.log
    prices, error = fit_prices(steps)
    usual_s = yardstick.mean()
    times = times_of(prices, shape.layers)
    prompts, answers = make_prompts(requests, seed)
    if rate is None:
        rate = LOAD * _capacity(times, prompts, answers)
    load = Workload(prompts, answers, arrivals(requests, rate, cv, seed))
    runs: dict[str, PolicyRun] = {}
    for name in POLICIES:
        carrier = Carrier(model, BLOCKS, _policy(name, times), seed, yardstick.look)
        measured = _run(name, times, load, carrier.policy, carrier)
        slower = yardstick.mean() / usual_s
        predicted = _run(name, times_of(prices.slower(slower), shape.layers), load, _policy(name, times))
        spent_s = carrier.step_ns * 1e-9, carrier.wall_ns * 1e-9
        runs[name] = PolicyRun(measured, predicted, slower, carrier.swapped_blocks, *spent_s)
    return Compared(device, rate, requests, len(steps), error, runs)


def _capacity(times: StepTimes, prompts: np.ndarray, answers: np.ndarray) -> float:
    """Requests per second where all are there at once, predicted."""
    load = Workload(prompts, answers, np.zeros(len(prompts), np.int64))
    replica = StepwiseReplica(times, _rules("fcfs"), BLOCKS, ContinuousBatching())
    sent, _ = simulate(load, [replica], None, block_size=BLOCK)
    return len(sent) / (max(sequence.last_ns for sequence in sent) * 1e-9)


def _rules(name: str) -> Rules:
    whole = name != "fcfs"
    budget = WHOLE if whole else CHUNK
    return Rules(max_num_seqs=BATCH, token_budget=budget, longest_chunk=budget, chunked=not whole, block_size=BLOCK)


def _policy(name: str, times: StepTimes) -> Batching:
    if name != "skip-join mlfq":
        return ContinuousBatching()

    def prefill_ns(tokens: int) -> int:
        return times.mixed(0, 0, [(tokens, 0)], 1) // TICKS_PER_NS

    first = QUANTUM_STEPS * times.decode(BATCH).at(BATCH * 128) // TICKS_PER_NS
    return SkipJoinBatching(
        prefill_ns, batch=BATCH, prompt_tokens=WHOLE, first_quantum_ns=first, host_blocks=HOST_BLOCKS
    )


def _run(
    name: str, times: StepTimes, load: Workload, policy: Batching, carry_out: Callable[[Plan], int] | None = None
) -> Side:
    replica = StepwiseReplica(times, _rules(name), BLOCKS, policy, HOST_BLOCKS, carry_out)
    sent: list[Sequence]
    sent, _ = simulate(load, [replica], None, block_size=BLOCK)
    stamps = stamps_of(sent)
    ttft, tpot, e2e = (distribution(values) for values in (stamps.ttft, stamps.tpot, stamps.e2e))
    span = float(stamps.last.max() - stamps.arrival.min())
    tally = replica.tally
    return Side(ttft, tpot, e2e, float(stamps.output.sum()) / span, tally.steps, tally.preemptions)
