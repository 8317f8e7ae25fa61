"""What holds for own GPUs and clouds: no private job outside, limits kept, limiting prices and patience, best by
measure.
"""

import dataclasses

import numpy as np
import pytest
from held_leases import Lease, first_overlap
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.errors import InputFileError, SpecError, UserError
from windtunnel.studies.fleet.hybrid.clouds import Cloud, Clouds, read_clouds
from windtunnel.studies.fleet.hybrid.plan import NS, HybridJob, Profile, plan
from windtunnel.studies.fleet.hybrid.run import figures_of, roaming
from windtunnel.studies.fleet.hybrid.spot import Ups, spot_run
from windtunnel.studies.fleet.hybrid.starburst import starburst
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.outcome import aggregates
from windtunnel.studies.fleet.policies.beyond.hybrid import PER, STRATEGIES, patience_s
from windtunnel.studies.fleet.policies.rigid.queues import run_queue
from windtunnel.studies.fleet.policies.table import names_of
from windtunnel.studies.fleet.run import simulate
from windtunnel.studies.fleet.site import parse_site

OWN = 8


def clouds_of(price=3.0, startup=60.0, factor=1.0, limit=None, spot=None):
    def cloud(name, gpus, price, label, startup, spot=None):
        return Cloud(name, name, price / 3600, label, gpus, 0.1, 1e9, startup, spot)

    pools = [cloud("own", OWN, 1.0, 2, 0.0), cloud("east", limit, price, 0, startup)]
    if spot is not None:
        pools.append(cloud("spot", None, price / 4, 1, startup, spot))
    return Clouds(tuple(pools), "constant", factor)


jobs_strategy = st.lists(
    st.tuples(
        st.integers(0, 600),
        st.integers(1, 400),
        st.sampled_from([1, 2, 3, 4, 8]),
        st.integers(0, 2),
        st.sampled_from([0.0, 5.0, 100.0]),
        st.integers(0, 1),
    ),
    min_size=1,
    max_size=20,
)


def made(jobs, **same):
    return [
        dataclasses.replace(HybridJob(at, float(submit), gpus, float(lasts), label, gb, where), **same)
        for at, (submit, lasts, gpus, label, gb, where) in enumerate(jobs)
    ]


def answers(jobs, clouds):
    for weights in STRATEGIES.values():
        yield plan(jobs, clouds, weights)
    yield starburst(jobs, clouds)
    yield roaming(jobs, clouds, 0)


def leases_of(jobs, clouds, placed):
    """What each job holds, and where."""
    return [
        Lease(
            (clouds.pools[each.pool].name,), job.gpus, str(job.index), round(each.start_s * NS), round(each.end_s * NS)
        )
        for job, each in zip(jobs, placed, strict=True)
        if each is not None
    ]


@settings(max_examples=80, deadline=None)
@given(jobs=jobs_strategy, spot=st.sampled_from([None, (300.0, 60.0)]))
def test_no_private_job_is_ever_outside_and_every_job_runs_whole(jobs, spot):
    work, clouds = made(jobs), clouds_of(spot=spot)
    for placed in answers(work, clouds):
        for job, each in zip(work, placed, strict=True):
            assert each is not None
            assert job.label <= clouds.pools[each.pool].privacy
            assert each.start_s >= job.submit_s - 1e-9
            assert each.end_s - each.start_s >= job.duration_s - 1e-6
        assert figures_of(placed, work, clouds)["private_outside"] == 0


@settings(max_examples=80, deadline=None)
@given(jobs=jobs_strategy)
def test_pools_with_a_limit_are_never_over_full(jobs):
    work, clouds = made(jobs), clouds_of(limit=8)
    for weights in STRATEGIES.values():
        leases = leases_of(work, clouds, plan(work, clouds, weights))
        assert first_overlap(leases, {("own",): OWN, ("east",): 8}) is None
    leases = leases_of(work, clouds_of(), starburst(work, clouds_of()))
    assert first_overlap([lease for lease in leases if lease.path == ("own",)], {("own",): OWN}) is None


@settings(max_examples=60, deadline=None)
@given(jobs=jobs_strategy)
def test_a_price_beyond_all_means_own_gpus_only(jobs):
    work = made(jobs, data_at=0)
    dear = plan(work, clouds_of(price=1e12), STRATEGIES["hybrid-cost"])
    alone = plan(work, Clouds(clouds_of().pools[:1]), STRATEGIES["hybrid-cost"])
    assert [(each.pool, each.start_s) for each in dear] == [(0, each.start_s) for each in alone]


@settings(max_examples=60, deadline=None)
@given(jobs=jobs_strategy)
def test_a_cloud_that_starts_at_once_leaves_nobody_waiting(jobs):
    work = made(jobs, label=0, data_gb=0.0)
    placed = plan(work, clouds_of(startup=0.0), STRATEGIES["hybrid-time"])
    assert [each.start_s for each in placed] == [job.submit_s for job in work]


@settings(max_examples=60, deadline=None)
@given(jobs=jobs_strategy)
def test_endless_patience_is_the_own_queue_and_none_is_no_waiting(jobs):
    work = made(jobs, data_gb=0.0, label=0)
    submit, lasts, gpus = (np.array([job[part] for job in jobs], np.int64) for part in range(3))
    start, _ = run_queue("fifo-skip", submit * NS, lasts * NS, gpus, nodes=1, per_node=OWN, pool=True)
    patient = starburst(work, clouds_of(factor=1e8))
    assert [round(each.start_s * NS) for each in patient] == start.tolist()
    hasty = starburst(work, clouds_of(factor=0.0, startup=0.0))
    assert [each.start_s for each in hasty] == [job.submit_s for job in work]


@settings(max_examples=60, deadline=None)
@given(jobs=jobs_strategy, factor=st.integers(0, 300))
def test_nobody_who_may_leave_waits_longer_than_patience(jobs, factor):
    work = made(jobs, data_gb=0.0)
    for job, each in zip(work, starburst(work, clouds_of(factor=float(factor), startup=0.0)), strict=True):
        if job.label == 0:
            assert each.start_s - job.submit_s <= factor + 1e-6


@settings(max_examples=80, deadline=None)
@given(asked=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 8), st.integers(1, 20)), min_size=1, max_size=12))
def test_the_profile_finds_the_first_time_that_a_search_of_every_second_finds(asked):
    profile, busy = Profile(8), np.zeros(2000, int)
    for begin, gpus, lasts in asked:
        earliest = profile.earliest(begin, gpus, lasts)
        naive = next(at for at in range(begin, 2000) if (busy[at : at + lasts] + gpus <= 8).all())
        assert earliest == naive
        profile.take(earliest, earliest + lasts, gpus)
        busy[earliest : earliest + lasts] += gpus


@settings(max_examples=80, deadline=None)
@given(work=st.integers(1, 5000), checkpoint=st.sampled_from([0.0, 10.0, 100.0]), seed=st.integers(0, 50))
def test_a_spot_run_holds_machines_for_its_work_and_what_is_lost(work, checkpoint, seed):
    run = spot_run(float(work), 3.0, Ups(400.0, 50.0, np.random.default_rng(seed)), 5.0, checkpoint)
    assert run.start_s >= 3.0
    assert run.end_s >= run.start_s + work
    most = work + run.interruptions * (5.0 + max(checkpoint, 0.0))
    assert work - 1e-6 <= run.held_s <= most + 1e-6
    if not run.interruptions:
        assert run.end_s == pytest.approx(run.start_s + work)


@settings(max_examples=60, deadline=None)
@given(runtime=st.floats(1, 1e6), gpus=st.integers(1, 512), factor=st.floats(0, 10))
def test_patience_grows_with_what_it_goes_by(runtime, gpus, factor):
    for per in PER:
        assert patience_s(per, factor, 2 * runtime, gpus) >= patience_s(per, factor, runtime, gpus)
        assert patience_s(per, factor, runtime, 2 * gpus) >= patience_s(per, factor, runtime, gpus)


SITE = """
gpu: a100
gpus: 16
price_per_gpu_hour: 1
privacy: private
pools:
  - {name: east, price_per_gpu_hour: 3, egress_per_gb: 0.1, startup: 60 s}
  - {name: partner, gpus: 8, price_per_gpu_hour: 2, privacy: internal}
  - {name: spot, price_per_gpu_hour: 1.2, spot: {up: 2 h, down: 10 min}}
starburst: {wait: 0.2, per: runtime}
"""


@pytest.fixture
def question(tmp_path):
    (tmp_path / "site.yaml").write_text(SITE)
    labels, places = ("public", "internal", "private"), ("own", "east", "partner")
    rows = [
        f"{at},{20 * at},{900 + 61 * (at % 7)},{(1, 2, 8)[at % 3]},{labels[at % 3]},{at % 5},{places[at % 4 % 3]}"
        for at in range(60)
    ]
    header = "job,submit_s,duration_s,gpus,privacy,data_gb,data_at\n"
    (tmp_path / "jobs.csv").write_text(header + "\n".join(rows) + "\n")
    return tmp_path


def test_each_strategy_is_best_by_its_own_measure(question):
    jobs, site = read_jobs(question / "jobs.csv"), parse_site(str(question / "site.yaml"))
    figures = {
        name: aggregates(simulate(jobs, site, name, Options()), site.gpus)
        for name in names_of(lambda traits: traits.loop == "clouds")
    }
    measures = {"cost": "cost", "time": "jct_mean_s", "locality": "moved_gb", "privacy": "secret_gb"}
    for name, measure in measures.items():
        assert figures[f"hybrid-{name}"][measure] == min(figures[strategy][measure] for strategy in STRATEGIES)
    assert figures["hybrid-time"]["cost"] > figures["hybrid-cost"]["cost"]
    assert all(each["private_outside"] == 0 and each["completed_jobs"] == 60 for each in figures.values())


def test_clouds_need_a_file_and_say_what_is_wrong_with_it(question):
    jobs = read_jobs(question / "jobs.csv")
    with pytest.raises(UserError, match="pools"):
        simulate(jobs, parse_site("a100:16"), "hybrid-cost", Options())
    for change, what in (
        (("privacy: internal", "privacy: secret"), "privacy"),
        (("startup: 60 s", "start: 60 s"), "start"),
        (("name: partner", "name: east"), "name"),
        (("per: runtime", "per: moon"), "starburst"),
        (("up: 2 h", "up: 0 h"), "spot"),
        (("price_per_gpu_hour: 3, ", ""), "price_per_gpu_hour of east is not given"),  # else free, and all run there
    ):
        (question / "site.yaml").write_text(SITE.replace(*change))
        with pytest.raises(SpecError, match=what):
            read_clouds(question / "site.yaml", 16)
    (question / "site.yaml").write_text("[")
    with pytest.raises(InputFileError):
        read_clouds(question / "site.yaml", 16)
