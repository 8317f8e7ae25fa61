"""Grades lab 6: laws, the worked example, then windtunnel's own FastServe batching with memory enough for all."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from windtunnel.studies.serving.batching.skip_join import LEVELS, LOOK_EVERY, STARVED_NS, SkipJoinBatching
from windtunnel.studies.serving.loop import simulate
from windtunnel.studies.serving.replica.rules import Rules
from windtunnel.studies.serving.replica.stepwise import StepwiseReplica
from windtunnel.studies.serving.step_time.times import TICKS_PER_NS
from windtunnel.studies.serving.workload.requests import Workload

MS = 1_000_000
FIRST = 10 * MS


def step_ns(tokens: int) -> int:
    return 7 * MS + 100_003 * tokens


class Times:
    """The same step times for windtunnel's replica, which counts in ticks."""

    def decode(self, sequences: int) -> Any:
        return SimpleNamespace(at=lambda context_sum: step_ns(sequences) * TICKS_PER_NS)

    def mixed(self, decoding: int, context_sum: int, chunks: Sequence[tuple[int, int]], finishing: int) -> int:
        return step_ns(decoding + sum(n for n, _ in chunks)) * TICKS_PER_NS


def served(lab: ModuleType, jobs: list[tuple[int, int, int]], batch: int) -> tuple[list[int], list[int]]:
    """An engine under the scheduler: first and last token of each (arrival, prompt, output), in ns."""
    policy = lab.SkipJoin(FIRST, LEVELS, batch)
    requests = [lab.Request(index) for index in range(len(jobs))]
    got = [0] * len(jobs)
    first, last = [-1] * len(jobs), [-1] * len(jobs)
    clock = following = rounds = 0
    chosen: list[Any] = []
    while True:
        if not any(policy.queues) and not chosen and following < len(jobs):
            clock = max(clock, jobs[following][0])
        rounds += 1
        policy.give_back(chosen)
        while following < len(jobs) and jobs[following][0] <= clock:
            policy.join(requests[following], step_ns(jobs[following][1]), clock)
            following += 1
        if rounds % LOOK_EVERY == 0:
            policy.promote(clock, STARVED_NS)
        chosen = policy.choose(clock)
        if not chosen:
            if following == len(jobs):
                return first, last
            continue
        length = step_ns(sum(jobs[one.index][1] if got[one.index] == 0 else 1 for one in chosen))
        clock += length
        for one in chosen:
            one.used_ns += length
            got[one.index] += 1
            if got[one.index] == 1:
                first[one.index] = clock
            if got[one.index] == jobs[one.index][2]:
                last[one.index] = clock
                one.is_done = True


def drawn(seed: int, n: int = 40) -> list[tuple[int, int, int]]:
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.integers(1, 300 * MS, n))
    outputs = np.where(rng.random(n) < 0.2, rng.integers(200, 600, n), rng.integers(1, 30, n))
    return list(zip(arrivals.tolist(), rng.integers(1, 900, n).tolist(), outputs.tolist(), strict=True))


# ------------------------------------------------------------------------------------------------------------- laws


def test_quanta_double(lab: ModuleType) -> None:
    policy = lab.SkipJoin(FIRST, 5, 4)
    assert [policy.quantum_ns(level) // MS for level in range(5)] == [10, 20, 40, 80, 160]


def test_a_request_joins_where_its_prefill_fits(lab: ModuleType) -> None:
    policy = lab.SkipJoin(FIRST, 5, 4)
    times_ms = [1, 10, 10.5, 20, 69, 160, 9999]
    requests = [lab.Request(index) for index in range(len(times_ms))]
    for one, prefill in zip(requests, times_ms, strict=True):
        policy.join(one, round(prefill * MS), 5)
    assert [one.level for one in requests] == [0, 0, 1, 1, 3, 4, 4]
    assert [[one.index for one in queue] for queue in policy.queues] == [[0, 1], [2, 3], [], [4], [5, 6]]


def test_upper_levels_and_heads_go_first_and_no_more_than_the_batch(lab: ModuleType) -> None:
    policy = lab.SkipJoin(FIRST, 4, 3)
    for index, prefill in enumerate([30, 1, 15, 2, 31]):
        policy.join(lab.Request(index), prefill * MS, 0)
    chosen = policy.choose(77)
    assert [one.index for one in chosen] == [1, 3, 2]
    assert {one.ran_ns for one in chosen} == {77}
    assert [[one.index for one in queue] for queue in policy.queues] == [[], [], [0, 4], []]


def test_who_has_used_the_quantum_goes_down_and_the_others_keep_their_place(lab: ModuleType) -> None:
    policy = lab.SkipJoin(FIRST, 2, 3)
    requests = [lab.Request(index) for index in range(5)]
    for one in requests:
        policy.join(one, MS, 0)
    chosen = policy.choose(0)
    requests[0].used_ns = 9 * MS
    requests[1].used_ns = 10 * MS
    requests[2].is_done = True
    policy.give_back(chosen)
    assert [[one.index for one in queue] for queue in policy.queues] == [[0, 3, 4], [1]]
    chosen = policy.choose(0)
    requests[0].used_ns = 12 * MS
    policy.give_back(chosen)
    assert [[one.index for one in queue] for queue in policy.queues] == [[3, 4], [1, 0]]


def test_in_the_last_level_nobody_falls_out(lab: ModuleType) -> None:
    policy = lab.SkipJoin(FIRST, 1, 1)
    one = lab.Request(0)
    policy.join(one, MS, 0)
    for _ in range(3):
        assert policy.choose(0) == [one]
        one.used_ns += 50 * MS
        policy.give_back([one])
    assert list(policy.queues[0]) == [one]


def test_the_starved_are_lifted_with_a_fresh_quantum(lab: ModuleType) -> None:
    policy = lab.SkipJoin(FIRST, 4, 1)
    old, new = lab.Request(0, used_ns=70 * MS), lab.Request(1)
    policy.join(old, 30 * MS, 100)
    policy.join(new, 30 * MS, 200)
    policy.promote(1150, 1050)
    assert old.level == 2, "as long as allowed is not too long"
    policy.promote(1151, 1050)
    assert (old.level, new.level) == (0, 2)
    assert [list(queue) for queue in policy.queues] == [[old], [], [new], []]
    assert old.used_before_ns == 70 * MS


def test_of_the_starved_the_upper_level_is_lifted_first(lab: ModuleType) -> None:
    policy = lab.SkipJoin(FIRST, 4, 1)
    for index, prefill in enumerate([40, 20, 80, 15]):
        policy.join(lab.Request(index), prefill * MS, 0)
    policy.promote(100, 50)
    assert [[one.index for one in queue] for queue in policy.queues] == [[1, 3, 0, 2], [], [], []]


def test_of_those_that_fall_together_the_last_chosen_is_first(lab: ModuleType) -> None:
    policy = lab.SkipJoin(FIRST, 2, 3)
    for index in range(3):
        policy.join(lab.Request(index), MS, 0)
    chosen = policy.choose(0)
    for one in chosen:
        one.used_ns = 10 * MS
    policy.give_back(chosen)
    assert [[one.index for one in queue] for queue in policy.queues] == [[], [2, 1, 0]]


def test_a_short_request_passes_long_ones_that_came_first(lab: ModuleType) -> None:
    jobs = [(0, 32, 400), (1, 32, 400), (1000 * MS, 32, 5)]
    _, last = served(lab, jobs, batch=2)
    assert last[2] < 1200 * MS
    assert min(last[:2]) > 2800 * MS


# --------------------------------------------------------------------------------------------------- worked example


def test_the_example_of_the_page(lab: ModuleType) -> None:
    """A: prefill 12 ms, B: 4 ms, C: 4 ms; first quantum 10 ms; one at a time, every further token 4 ms."""
    policy = lab.SkipJoin(FIRST, 3, 1)
    requests = {name: lab.Request(index) for index, name in enumerate("ABC")}
    left = {"A": 3, "B": 4, "C": 1}
    prefill_ms = {"A": 12, "B": 4, "C": 4}
    for name, one in requests.items():
        policy.join(one, prefill_ms[name] * MS, 0)
    ran = ""
    chosen = policy.choose(0)
    while chosen:
        (one,) = chosen
        name = "ABC"[one.index]
        one.used_ns += (4 if name in ran else prefill_ms[name]) * MS
        ran += name
        left[name] -= 1
        one.is_done = left[name] == 0
        policy.give_back(chosen)
        chosen = policy.choose(0)
    assert ran == "BBBCAAAB"


# ------------------------------------------------------------------------------------------- windtunnel as the oracle


@pytest.mark.parametrize(("seed", "batch"), [(0, 1), (1, 2), (2, 4), (3, 8)])
def test_stamps_are_windtunnels(lab: ModuleType, seed: int, batch: int) -> None:
    jobs = drawn(seed)
    arrivals, prompts, outputs = (np.array(column) for column in zip(*jobs, strict=True))
    theirs = SkipJoinBatching(step_ns, batch=batch, prompt_tokens=10**9, first_quantum_ns=FIRST)
    rules = Rules(max_num_seqs=batch, token_budget=10**9, longest_chunk=10**9, chunked=False)
    replica = StepwiseReplica(Times(), rules, 100_000, theirs)  # type: ignore[arg-type]
    sent, refused = simulate(Workload(prompts, outputs, arrivals), [replica], None, block_size=rules.block_size)
    assert not refused
    first, last = served(lab, jobs, batch)
    stamps = [(one.first_ns, one.last_ns) for one in sent]
    for place in sorted(range(len(jobs)), key=stamps.__getitem__):  # causes come before effects
        assert (first[place], last[place]) == stamps[place], f"first and last token (ns) of request {place}"
