"""Queues of KAI-Scheduler and Volcano: read as they say, and shares, limits and what is owed as laws."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.studies.fleet.jobs.fair_queues import ENDLESS, SHARED, on_cluster
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.jobs.trace import Cohort, Jobs, Quota
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.run import simulate
from windtunnel.studies.fleet.site import parse_site


def kai(name: str, quota: float = 0, limit: float = -1, weight: float = 1, parent: str = "") -> dict[str, object]:
    gpu = {"quota": quota, "limit": limit, "overQuotaWeight": weight}
    spec = {"parentQueue": parent, "resources": {"gpu": gpu}}
    return {"kind": "Queue", "apiVersion": "scheduling.run.ai/v2", "metadata": {"name": name}, "spec": spec}


def volcano(name: str, **spec: object) -> dict[str, object]:
    return {"kind": "Queue", "apiVersion": "scheduling.volcano.sh/v1beta1", "metadata": {"name": name}, "spec": spec}


def job(name: str, queue: str, gpus: int, lasts: int = 100, at: int = 0, label: str = "kai.scheduler/queue") -> object:
    pod = {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}}
    meta = {
        "name": name, "namespace": "n", "labels": {label: queue}, "creationTimestamp": f"2026-11-01T00:{at:02d}:00Z",
        "annotations": {"windtunnel/duration-s": str(lasts)},
    }  # fmt: skip
    return {"kind": "Job", "apiVersion": "batch/v1", "metadata": meta,
            "spec": {"parallelism": gpus, "completions": gpus, "template": pod}}  # fmt: skip


def read(folder: Path, *objects: object) -> Jobs:
    path = folder / "objects.json"
    path.write_text(json.dumps({"items": list(objects)}))
    return read_jobs(path)


def test_kais_queues_as_they_say(tmp_path: Path) -> None:
    jobs = read(
        tmp_path, kai("lab", 8), kai("vision", 4, 6, 2, "lab"), kai("speech", 2, parent="lab"), kai("loose", -1),
        job("a", "vision", 2),
    )  # fmt: skip
    vision, speech, loose = jobs.quotas
    assert (vision.name, vision.nominal, vision.borrowing_limit, vision.weight, vision.cohort) == (
        "vision",
        4,
        2,
        2,
        "lab",
    )
    assert (speech.nominal, speech.borrowing_limit) == (2, None)
    assert (loose.nominal, loose.borrowing_limit, loose.cohort) == (ENDLESS, None, SHARED)
    assert jobs.cohorts == (Cohort(SHARED), Cohort("lab", SHARED, 2))
    assert list(jobs.columns["cluster_queue"]) == ["vision"]
    settled = on_cluster(jobs, 16)
    assert settled.quotas[2].nominal == 8  # without an end: 16, less 4, 2 and lab's own 2
    assert settled.cohorts[0].nominal == 0
    assert on_cluster(settled, 16).cohorts == settled.cohorts


def test_volcanos_queues_as_they_say(tmp_path: Path) -> None:
    gpus = {"nvidia.com/gpu": "4"}
    jobs = read(
        tmp_path,
        volcano("a", weight=3, capability={"nvidia.com/gpu": 6}, guarantee={"resource": gpus}),
        volcano("b", weight=1, reclaimable=False), volcano("c", deserved=gpus, capability={"cpu": 8}),
        job("x", "a", 1, label="scheduling.volcano.sh/queue-name"),
    )  # fmt: skip
    assert [(each.nominal, each.borrowing_limit, each.weight) for each in jobs.quotas] == [
        (4, 2, 3),
        (0, None, 1),
        (4, None, 1),
    ]
    assert [(note.reason, note.examples) for note in jobs.not_understood] == [
        ("says that nobody reclaims from it: not modelled", ("b",))
    ]


def test_what_is_left_is_shared_by_weight(tmp_path: Path) -> None:
    many = [job(f"{queue}{at}", queue, 1) for queue in ("a", "b") for at in range(40)]
    jobs = read(tmp_path, kai("a", 4, weight=1), kai("b", 0, weight=3), *many)
    outcome = simulate(jobs, parse_site("a100:2x8"), "kai", Options())
    first = [name for name, end in zip(jobs.name, outcome.end_s, strict=True) if end == 100]
    assert sum(name.startswith("n/a") for name in first) == 7  # 4 that it is owed, and one in four of 12
    assert sum(name.startswith("n/b") for name in first) == 9


def test_what_a_queue_is_owed_comes_back(tmp_path: Path) -> None:
    jobs = read(tmp_path, kai("a", 8), kai("b", 8), job("big", "a", 16, 600), job("late", "b", 8, 60, at=1))
    outcome = simulate(jobs, parse_site("a100:2x8"), "kai", Options())
    assert outcome.start_s.tolist() == [0.0, 60.0]
    assert outcome.restarts.tolist() == [1, 0]


def test_a_limit_is_kept_though_the_cluster_is_empty(tmp_path: Path) -> None:
    jobs = read(tmp_path, kai("a", 0, limit=4), *(job(f"j{at}", "a", 2) for at in range(4)), job("huge", "a", 8))
    outcome = simulate(jobs, parse_site("a100:2x8"), "kai", Options())
    assert sorted(outcome.start_s.tolist()[:4]) == [0.0, 0.0, 100.0, 100.0]
    assert [drop.job for drop in outcome.dropped] == [4]


@settings(max_examples=25)
@given(
    weights=st.tuples(*[st.sampled_from((1, 2, 3, 5))] * 3),
    owed=st.tuples(*[st.integers(0, 5)] * 3),
)
def test_shares_of_busy_queues_are_their_weights(
    tmp_path_factory: pytest.TempPathFactory, weights: tuple[int, int, int], owed: tuple[int, int, int]
) -> None:
    names = "abc"
    objects = [volcano(name, weight=weight, guarantee={"resource": {"nvidia.com/gpu": each}})
               for name, weight, each in zip(names, weights, owed, strict=True)]  # fmt: skip
    label = "scheduling.volcano.sh/queue-name"
    many = [job(f"{name}{at}", name, 1, label=label) for name in names for at in range(64)]
    jobs = read(tmp_path_factory.mktemp("laws"), *objects, *many)
    outcome = simulate(jobs, parse_site("a100:8x8"), "volcano", Options())
    started = [name[2] for name, end in zip(jobs.name, outcome.end_s, strict=True) if end == 100]
    beyond = 64 - sum(owed)
    assert len(started) == 64
    for name, weight, each in zip(names, weights, owed, strict=True):
        assert started.count(name) - each == pytest.approx(beyond * weight / sum(weights), abs=1.0)


def test_quotas_without_such_queues_stay_as_they_are(tmp_path: Path) -> None:
    jobs = replace(read(tmp_path, job("a", "x", 1)), quotas=(Quota("a", 4, "c"),), cohorts=(Cohort("c", "", 2),))
    assert on_cluster(jobs, 64) is jobs


def test_a_quota_without_an_end_comes_before_what_is_beyond_others(tmp_path: Path) -> None:
    jobs = read(tmp_path, kai("gold", -1), kai("tin", 4), job("big", "tin", 16, 600), job("late", "gold", 8, 60, at=1))
    assert simulate(jobs, parse_site("a100:2x8"), "kai", Options()).start_s.tolist() == [0.0, 60.0]


def test_queues_in_a_circle_stand_by_themselves_and_others_queues_are_none(tmp_path: Path) -> None:
    rabbit = {"kind": "Queue", "apiVersion": "rabbitmq.com/v1beta1", "metadata": {"name": "r"}, "spec": {}}
    jobs = read(tmp_path, kai("a", 2, parent="b"), kai("b", 3, parent="a"), rabbit, job("x", "a", 1))
    assert {quota.name for quota in jobs.quotas} | {cohort.name for cohort in jobs.cohorts} == {"a", "b", SHARED}
    assert [note.reason for note in jobs.not_understood] == ["is above itself through its parents: stands by itself"]
