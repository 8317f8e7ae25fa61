"""Jobs that learn their speed: compiled step times, splits, fit and clock against scipy and plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from oracles.adaptdl import clock
from oracles.adaptdl.pollux import run
from oracles.run import in_adaptdl

from windtunnel.errors import UserError
from windtunnel.physics.engine.compiled.fleet import adaptdl_kernels as kernels
from windtunnel.physics.engine.compiled.fleet import goodput_kernels as goodput
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.measured.application import Application, Validation
from windtunnel.studies.fleet.measured.chosen import ChosenBatch, measured_of
from windtunnel.studies.fleet.measured.jobs import works
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.policies.elastic.pollux import Pollux
from windtunnel.studies.fleet.run import simulate
from windtunnel.studies.fleet.site import parse_site
from windtunnel.studies.fleet.speeds.tables import Tables


def application(name: str, samples: float, per_sample_s: float) -> Application:
    """Measured on some placements of up to 4 GPUs; other ones up to 16 nodes by counts, on a grid."""
    counts = np.array([samples, 3 * samples, 4 * samples])
    runs = {
        batch: Validation(counts, counts / batch, np.array([1.0, 0.8, 0.5]), np.array([2.0, 9.0, 20.0]) * 8 / batch)
        for batch in (8, 64, 512)
    }

    def step(nodes: int, gpus: int, local: float) -> tuple[float, float]:
        sync = 0.0 if gpus == 1 else 0.02 * nodes + 0.004 * gpus
        return 0.05 + per_sample_s * local + sync, sync

    placements = {(1,): 1, (2,): 1, (4,): 1, (1, 1): 2, (1, 3): 2}
    measured = {
        key: np.array([[local, *step(on, sum(key), local)] for local in (1, 8, 64)]) for key, on in placements.items()
    }
    grid = [(n, g, m) for n in (1, 2, 4, 8, 16) for g in (1, 2, 4, 16, 64) for m in (1.0, 8.0, 64.0)]
    values = np.array([step(*point) for point in grid])
    return Application(name, measured, np.array(grid, float), values, runs, 3, 1, 64)


@pytest.fixture(scope="module")
def apps():
    pytest.importorskip("scipy")
    return [application("small", 4e3, 0.01), application("ncf", 8e3, 0.02), application("large", 3e4, 0.004)]


def test_step_times_are_those_of_scipy(apps):
    measured = measured_of(apps)
    random = np.random.default_rng(4)
    reached = 0
    for turn in range(400):
        which = turn % len(apps)
        placement = tuple(random.integers(1, 5, random.integers(1, 19)).tolist())
        if turn % 3 == 0:
            placement = tuple(random.permutation([*apps[which].placements][turn % 6]).tolist())
        local = int(random.choice([1, 8, 64, *random.integers(1, 90, 3)]))
        key = kernels.key_of(np.array(placement), len(placement))
        step_times = kernels.step_times(measured, which, key, len(placement), sum(placement), local)
        try:
            assert step_times == pytest.approx(apps[which].step_times_s(placement, local), rel=1e-12)
            reached += 1
        except UserError:
            assert np.isnan(step_times[0])
    assert reached > 200


@pytest.mark.long  # of validation's clock, whose loop takes 20 s to compile; the plain one is held below
def test_the_compiled_clock_is_the_plain_one_job_by_job(apps):
    random = np.random.default_rng(8)
    which = random.integers(0, len(apps), 14).tolist()
    submits = np.cumsum(random.integers(0, 400, 14)).astype(float)
    measured = measured_of(apps)
    fast = run([ChosenBatch(apps[at], measured, at) for at in which], submits, [4] * 3, None)
    slow = [clock.Running(row, submits[row], 1, ChosenBatch(apps[at], measured, at)) for row, at in enumerate(which)]
    clock.run(slow, [4] * 3, Pollux())
    for name in ("start_s", "end_s", "restarts", "gpu_seconds"):
        assert fast[name].tolist() == [getattr(job, name) for job in slow]
    assert fast["restarts"].sum() > 5
    early = run([ChosenBatch(apps[at], measured, at) for at in which], submits, [4] * 3, 1200.0)
    assert np.isnan(early["end_s"][-1])
    ended = ~np.isnan(early["end_s"])
    assert (early["end_s"][ended] == fast["end_s"][ended]).all()


def test_a_job_outside_the_tables_is_named():
    apps = [application("small", 4e3, 0.01)]
    apps[0].placements[3,] = np.array([[8.0, 0.2, 0.1]])  # at one batch only
    assert apps[0].step_times_s((3,), 8) == (0.2, 0.1)
    job = ChosenBatch(apps[0], measured_of(apps), 0)
    with pytest.raises(UserError, match="small on 3 GPUs of 1 nodes with 3 samples each is outside"):  # 8 in all
        job.rate((3,), 0)


def test_the_best_split_is_that_of_trying_all_sizes():
    random = np.random.default_rng(1)
    rows = np.empty((goodput.SIZES, 3))
    for _ in range(300):
        limits = np.array([8.0, 8 * 2.0 ** random.integers(1, 9), 1.0, float(random.integers(8, 200))])
        gpus, across = int(random.integers(1, 65)), bool(random.integers(2))
        speed = np.append(10.0 ** random.uniform(-4, 0, 6), random.uniform(1, 10))
        sqr, var = random.uniform(0.1, 1), random.uniform(0, 30)
        sizes = np.geomspace(max(limits[0], gpus), limits[1], goodput.SIZES) / gpus
        times = np.ceil(sizes / limits[3] - 1e-8) - 1
        if gpus == 1:
            times = np.where(sizes > limits[0] + 1e-8, np.maximum(times, 1), times)
        samples = np.ceil(sizes / (times + 1) - 1e-8)
        network = 1e-8 if gpus == 1 else speed[4] + speed[5] * max(gpus - 2, 1e-8)
        if across:
            network = speed[2] + speed[3] * max(gpus - 2, 1e-8)
        compute, batch = speed[0] + speed[1] * samples, gpus * samples * (times + 1)
        iteration = times * compute + (compute ** speed[6] + network ** speed[6]) ** (1 / speed[6])
        worth = batch / iteration * (var + sqr) / (var + sqr * batch / 8)
        worth[(samples < 1) | (samples > limits[3])] = 0
        count = goodput.splits(limits, gpus, rows)
        for first in (0, 7):
            found, at = goodput.best(speed, sqr, var, 8.0, across, gpus, rows[:count], first)
            assert found == pytest.approx(worth.max(), rel=1e-12)
            assert worth[(samples == rows[at, 0]) & (times == rows[at, 1])].max() == pytest.approx(found, rel=1e-12)


def test_the_slope_of_the_fit_is_its_error_by_differences():
    random = np.random.default_rng(3)
    case = np.array([0, 4, 2, 2, 4, 0])
    seen = np.column_stack([random.uniform(1e-8, 9, 6), random.integers(1, 99, 6), random.uniform(-5, 1, (6, 2))])
    for _ in range(20):
        at = np.append(random.uniform(-6, 0, 6), random.uniform(1.1, 9))
        slope, bend, scratch = np.empty(7), np.empty((7, 7)), np.empty((7, 7))
        goodput.loss(at, case, seen, slope, bend)
        for axis in range(7):
            ends = [
                goodput.loss(at + sign * 1e-6 * np.eye(7)[axis], case, seen, np.empty(7), scratch) for sign in (1, -1)
            ]
            assert slope[axis] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-6)
        assert np.linalg.eigvalsh(np.triu(bend) + np.triu(bend, 1).T).min() > -1e-9


def test_the_fit_finds_the_curve_that_made_the_steps_from_scratch_and_step_by_step():
    rows = []
    for nodes, gpus in ((1, 1), (1, 2), (1, 4), (2, 8), (4, 16)):
        for local in (8, 16, 32):
            compute = 0.05 + 0.01 * local
            network = 0.0 if gpus == 1 else (0.1 + 0.005 * (gpus - 2)) * (2 if nodes > 1 else 1)
            rows.append((nodes, gpus, local, compute + network, network))
    seen, speed = np.array(rows, float), np.zeros(7)
    for count in range(1, len(seen) + 1):
        goodput.fit(seen[:count], speed, count > 1)
    for found in (speed, np.zeros(7)):
        if not found.any():
            goodput.fit(seen, found, False)
        assert found[0] == pytest.approx(0.05, rel=0.1)
        assert found[1] == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize(("policy", "batch"), [("tiresias", 64), ("optimus", 64), ("pollux", 0), ("sia", 0)])
def test_both_clocks_run_measured_applications(apps, policy, batch, monkeypatch, tmp_path):
    """The exact clock's mean JCT is near the other's, which counts in ticks of a minute."""
    (tmp_path / "pollux_placements.csv").touch()
    tables = Tables(tmp_path)
    monkeypatch.setattr(Tables, "applications", {app.name: app for app in apps})
    rows = [
        f"{at},{at * 300},{1 + at % 3},{apps[at % 3].name},{batch or 8}"
        for at in range({"sia": 1, "pollux": 5}.get(policy, 9))
    ]
    trace = tmp_path / "jobs.csv"
    trace.write_text("\n".join(["job,submit_s,gpus,model,batch_size", *rows]))
    jobs, site = read_jobs(trace), parse_site("t4:3x4")
    exact = simulate(jobs, site, policy, Options(tables))
    assert (exact.state == 0).all()
    if policy == "pollux":
        work = works(jobs, site, tables, learns=True)
        plain = [clock.Running(at, float(jobs.submit_s[at]), 1, work[at]) for at in range(len(jobs))]
        clock.run(plain, [4] * 3, Pollux())
        assert np.mean(exact.jct_s) == pytest.approx(np.mean([job.end_s - job.submit_s for job in plain]), rel=0.15)
    elif policy != "sia":
        ticks = in_adaptdl(jobs, site, policy, tables)
        assert np.mean(exact.jct_s) == pytest.approx(np.mean(ticks.jct_s), rel=0.15)
