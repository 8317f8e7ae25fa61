"""Spares of a serving fleet: laws, the closed form, and machines that fail and are repaired one by one."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from windtunnel.errors import SpecError, UserError
from windtunnel.faces.report.serving.placement import plans_document
from windtunnel.questions.asked.serve.plan import ServePlan
from windtunnel.questions.reading import read
from windtunnel.studies.serving.placement.fewest import Plan, Shape
from windtunnel.studies.serving.placement.plan import ServingPlans
from windtunnel.studies.serving.placement.spares import Failures, fewest_spares, share_held, spares_of
from windtunnel.studies.serving.study import answer_plan
from windtunnel.views import Headline

YEAR_S = 365 * 86400.0
REPLICA = Shape("tp8", 8, 1, 1, 1)
SMALL = Shape("tp2", 2, 1, 1, 1)
APART = Plan(REPLICA, 6, SMALL, 4)


@pytest.mark.parametrize("plan", [Plan(REPLICA, 12), APART])
def test_without_failures_there_are_no_spares(plan: Plan) -> None:
    for failures in (Failures(math.inf, 3600.0, 1.0), Failures(YEAR_S, 0.0, 1.0)):
        spares = spares_of(plan, failures)
        assert (spares.replicas, spares.prefill, spares.gpus, spares.loose_gpus, spares.held) == (0, 0, 0, 0, 1.0)


@pytest.mark.parametrize("plan", [Plan(REPLICA, 40), Plan(SMALL, 3), APART])
def test_rarer_failures_shorter_repairs_and_less_asked_never_need_more(plan: Plan) -> None:
    rarer = [spares_of(plan, Failures(scale * YEAR_S, 86400.0, 0.999)).gpus for scale in (0.3, 0.5, 1, 2, 5, 50)]
    shorter = [spares_of(plan, Failures(YEAR_S, hours * 3600.0, 0.999)).gpus for hours in (72, 24, 12, 4, 1, 0.1)]
    less = [spares_of(plan, Failures(YEAR_S, 86400.0, share)).gpus for share in (0.99999, 0.999, 0.99, 0.9, 0.5)]
    for found in (rarer, shorter, less):
        assert all(later <= earlier for earlier, later in pairwise(found))
    assert rarer[0] > rarer[-1]


@pytest.mark.parametrize("needed", [1, 4, 9])
@pytest.mark.parametrize("up", [0.6, 0.9, 0.999])
def test_the_share_held_is_binomial(needed: int, up: float) -> None:
    for spare in range(6):
        n = needed + spare
        expected = sum(math.comb(n, k) * up**k * (1.0 - up) ** (n - k) for k in range(needed, n + 1))
        assert share_held(needed, spare, up) == pytest.approx(expected, rel=1e-12)
    least = fewest_spares(needed, up, 0.99)
    assert share_held(needed, least, up) >= 0.99
    assert least == 0 or share_held(needed, least - 1, up) < 0.99


def test_two_pools_have_the_fewest_gpus_of_all_pairs_that_hold() -> None:
    failures = Failures(0.2 * YEAR_S, 86400.0, 0.999)
    ups = failures.up(REPLICA.gpus), failures.up(SMALL.gpus)
    pairs = [(one, other) for one in range(12) for other in range(12)]
    held = {pair: share_held(6, pair[0], ups[0]) * share_held(4, pair[1], ups[1]) for pair in pairs}
    best = min(8 * one + 2 * other for (one, other), share in held.items() if share >= 0.999)
    spares = spares_of(APART, failures)
    assert spares.gpus == best == 8 * spares.replicas + 2 * spares.prefill
    assert spares.held == pytest.approx(held[spares.replicas, spares.prefill])


@pytest.mark.parametrize("steady", [True, False], ids=["repairs all alike", "repairs that differ"])
def test_machines_that_fail_one_by_one_are_up_for_that_share(steady: bool) -> None:
    draw, needed, spare, horizon = np.random.default_rng(3), 5, 2, 20_000.0
    failures = Failures(80.0, 1.0, 0.9)
    changes = []
    for _ in range(needed + spare):
        now = 0.0
        while now < horizon:  # eight GPUs: the first failure of any takes the replica
            now += draw.exponential(80.0 / 8)
            back = now + (1.0 if steady else draw.exponential(1.0))
            changes += [(now, -1), (back, 1)]
            now = back
    changes.sort()
    up, before, held = needed + spare, 0.0, 0.0
    for when, change in changes:
        held += (min(when, horizon) - min(before, horizon)) * (up >= needed)
        up, before = up + change, when
    assert held / horizon == pytest.approx(share_held(needed, spare, failures.up(8)), abs=0.004)


def test_what_no_spares_can_hold_is_refused() -> None:
    with pytest.raises(UserError, match="mtbf-gpu"):
        spares_of(Plan(REPLICA, 4), Failures(3600.0, 86400.0, 0.999))


LOAD = {"requests": {"prompt": 800, "output": 100}, "load": {"rate": 10}, "limits": {"tpot": "30ms"}}
FAILING = {"mtbf_gpu": "1000h", "repair": "10h"}


def _asked(**fields: object) -> ServePlan:
    question = read({"question": "serve plan", "model": "llama-3.1-8b", "cluster": "h100-sxm:8", **LOAD, **fields})
    assert isinstance(question, ServePlan)
    return question


def test_a_plan_with_failures_has_spares_and_says_so() -> None:
    plain = answer_plan(_asked()).to_dict()["plans"]
    answer = answer_plan(_asked(gpus=FAILING))
    assert isinstance(answer, ServingPlans)
    plans = answer.to_dict()["plans"]
    assert "spares" not in plain[0]
    assert {one["layout"] for one in plans} == {one["layout"] for one in plain}
    whole = [one["gpus"] + one["spares"]["gpus"] for one in plans]
    assert whole == sorted(whole)
    assert plans[0]["spares"]["replicas"] > 0
    assert plans[0]["spares"]["held"] >= 0.999 > plans[0]["spares"]["without"]
    headline = plans_document(answer).views[0]
    assert isinstance(headline, Headline)
    assert headline.verdict.startswith(f"{whole[0]} GPUs")


def test_spares_are_of_a_rate_that_is_planned_for() -> None:
    with pytest.raises(SpecError, match="mtbf_gpu"):
        answer_plan(_asked(gpus=FAILING, replicas={"tp": 2}))
