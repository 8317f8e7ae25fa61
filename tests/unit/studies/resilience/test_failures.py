"""Failure processes: reading, drawing, fitting, writing."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from windtunnel.errors import InputFileError, SpecError, UnknownNameError
from windtunnel.studies.resilience.failures import CATALOGUE, draw, fit_log, process_to_yaml, read_failures
from windtunnel.studies.resilience.failures.draw import NEVER, SLOW
from windtunnel.studies.resilience.failures.process import Bursts, Cause, FailureProcess, Lemons, SlowHosts

DAY_S = 86_400.0


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_process_written_and_read_is_the_same(name: str, tmp_path: Path) -> None:
    process = read_failures(name)
    path = tmp_path / "mine.yaml"
    path.write_text(process_to_yaml(process))
    again = read_failures(path)
    assert again.rate_per_s(1024, 8) == pytest.approx(process.rate_per_s(1024, 8))
    assert again.lemons == process.lemons
    assert again.slow.rate_per_node_s == pytest.approx(process.slow.rate_per_node_s)
    assert [one.symptom for one in again.causes] == [one.symptom for one in process.causes]


def test_llama3_is_inside_its_own_interval() -> None:
    trace = draw(read_failures("llama3"), 16_384, 8, 54 * DAY_S, 300)
    planned = next(i for i, one in enumerate(trace.process.causes) if one.symptom == "planned")
    counts = ((trace.time_ns < NEVER) & (trace.cause != planned)).sum(axis=1)
    low, high = np.percentile(counts, [10, 90])
    assert low < 419 < high
    assert counts.mean() == pytest.approx(419, abs=4 * np.sqrt(419 / 300))
    assert counts.var() == pytest.approx(419, rel=0.35)  # Poisson: no lemons in this catalogue


def test_draws_are_the_same_bytes_and_seeds_do_not_depend_on_their_number() -> None:
    process = read_failures("production")
    few, many = (draw(process, 4096, 8, 9 * DAY_S, n, seed=3) for n in (2, 5))
    for name in ("time_ns", "cause", "slow_ns", "repeat"):
        a, b = getattr(few, name), getattr(many, name)
        width = min(a.shape[1], b.shape[1])
        assert np.array_equal(a[:, :width], b[:2, :width])


def test_events_ascend_strictly_and_slow_hosts_are_marked() -> None:
    trace = draw(read_failures("production"), 131_072, 8, 20 * DAY_S, 4)
    for times, cause, slow in zip(trace.time_ns, trace.cause, trace.slow_ns, strict=True):
        real = times < NEVER
        assert (np.diff(times[real]) > 0).all()
        assert ((slow > 0) == (cause == SLOW))[real].all()
    assert (trace.cause == SLOW).any()


def test_events_are_expected_by_rate_and_time_slow_hosts_among_them() -> None:
    cause = Cause("memory", "gpu", "gpu", 1e-8)
    process = FailureProcess("own", "by hand", (cause,), slow=SlowHosts(rate_per_node_s=3e-8))
    # 16 GPUs fail at 1e-8 a second each, 2 nodes become slow at 3e-8: 2.2e-7 a second for a million seconds
    assert process.events(16, 8, 1e6) == pytest.approx(0.22)


def test_lemons_keep_the_mean_and_repeat_themselves() -> None:
    process = read_failures("production")
    trace = draw(process, 16_384, 8, 30 * DAY_S, 60)
    real = (trace.time_ns < NEVER) & (trace.cause != SLOW)
    expected = process.rate_per_s(16_384, 8, planned=True) * 30 * DAY_S
    assert real.sum(axis=1).mean() == pytest.approx(expected, rel=0.06)
    assert 0.1 < trace.repeat.sum() / real.sum() < 0.6


def test_a_log_is_fitted(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    rows = [f"{t:.4f},GPU fell off,gpu,n{random.integers(0, 128)}" for t in np.sort(random.uniform(0, 720, 60))]
    rows += [f"{t:.4f},assertion,software," for t in random.uniform(0, 720, 30)]
    rows += [f"{t:.4f},GPU fell off,gpu,n7" for t in random.uniform(0, 720, 20)]
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["time_h,cause,component,node", *rows]))
    process = fit_log(path, 1024, 30)
    by_name = {one.name: one for one in process.causes}
    of_log = by_name["GPU fell off"].rate_per_s * 1024 * 30 * DAY_S * (1.0 + process.bursts.share)
    assert of_log == pytest.approx(80)
    assert by_name["assertion"].hosts == 0
    assert process.lemons.share_of_hosts == pytest.approx(1 / 128)
    assert process.bursts.share < 0.1


def test_a_fitted_process_has_as_many_interruptions_as_its_log(tmp_path: Path) -> None:
    """Second failures are rows of the log as well: they are not added to it once more."""
    first = np.sort(np.random.default_rng(0).uniform(0, 2400, 100))
    path = tmp_path / "log.csv"
    times = np.sort(np.concatenate([first, first[:30] + 0.05]))
    path.write_text("\n".join(["time_h,cause,component", *(f"{t:.4f},crash,software" for t in times)]))
    process = fit_log(path, 1024, 100)
    assert process.rate_per_s(1024, 8) * 100 * DAY_S == pytest.approx(130)
    assert process.bursts.share == pytest.approx(0.3, abs=0.05)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: x\nsource: y\ncauses: [{name: a, count: 3}]\n", "observed"),
        ("name: x\nsource: y\ncauses: [{name: a}]\n", "exactly one"),
        ("name: x\nsource: y\ncauses: [{name: a, per_day: 1, colour: red}]\n", "colour"),
        ("name: x\nsource: y\ncauses: [{name: a, per: gpu, per_1000_node_days: 1}]\n", "per: node"),
        ("just text", "key"),
    ],
)
def test_a_wrong_file_is_one_clear_error(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(InputFileError, match=said):
        read_failures(path)
    with pytest.raises(UnknownNameError):
        read_failures("llama33")


def test_of_each_lemon_the_first_failure_is_none_that_it_repeats() -> None:
    """Every host is one: among hundreds of failures each of the eight hosts has its first, and only that is new."""
    process = FailureProcess("lemons", "", (Cause("gpu", "gpu", "gpu", 1e-5),), Lemons(1.0, 1.0))
    trace = draw(process, 64, 8, 1e6, 5)
    for times, repeat in zip(trace.time_ns, trace.repeat, strict=True):
        failures = int((times < NEVER).sum())
        assert failures > 300
        assert int(repeat.sum()) == failures - 8


def test_what_a_cause_is_called_says_how_it_shows(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text(
        "cause,count,component\nNCCL timeout,1,node\nhang in a collective,1,node\nNaN,1,gpu\nsilent corruption,1,gpu\n"
        "nan counter broken,1,gpu\nupgrade,1,planned\nrestart,1,manual\n"
    )
    symptoms = {cause.name: cause.symptom for cause in fit_log(log, 64, 30.0).causes}
    assert symptoms == {
        "NCCL timeout": "hang", "hang in a collective": "hang", "NaN": "silent", "silent corruption": "silent",
        "nan counter broken": "explicit", "upgrade": "planned", "restart": "manual",
    }  # fmt: skip


def _log(folder: Path, header: str, rows: list[str]) -> Path:
    path = folder / "log.csv"
    path.write_text("\n".join([header, *rows]))
    return path


def test_rates_of_a_log_are_counts_over_what_was_watched(tmp_path: Path) -> None:
    rows = ["chip,6,gpu", "fan,4,node", "bug,2,software", "who knows,3,", "upgrade,5,planned", "stop,1,manual"]
    process = fit_log(_log(tmp_path, "cause,count,component", rows), 60, 10.0)  # eight nodes, the last one half full
    found = {cause.name: (cause.per, cause.rate_per_s * 10 * DAY_S, cause.hosts) for cause in process.causes}
    assert found == {
        "chip": ("gpu", pytest.approx(6 / 60), 1),
        "fan": ("node", pytest.approx(4 / 8), 1),
        "bug": ("job", pytest.approx(2), 0),
        "who knows": ("node", pytest.approx(3 / 8), 1),
        "upgrade": ("job", pytest.approx(5), 1),
        "stop": ("job", pytest.approx(1), 0),
    }
    assert process.lemons.share_of_hosts == process.bursts.share == 0.0


def test_bursts_are_close_failures_beyond_chance(tmp_path: Path) -> None:
    """Ten failures; four within ten minutes of the one before, after 2, 4, 6 and 8 minutes."""
    hours = [0, 100, 200, 300, 400, 500, 500 + 2 / 60, 500 + 6 / 60, 500 + 12 / 60, 500 + 20 / 60]
    log = _log(tmp_path, "time_h,cause", [f"{hour:.9f},crash" for hour in reversed(hours)])
    bursts = fit_log(log, 64, 50.0).bursts
    second = 4 / 10 - (1 - math.exp(-10 * 600 / (50 * DAY_S)))
    assert bursts.share == pytest.approx(second / (1 - second))
    assert bursts.mean_delay_s == pytest.approx(300.0, rel=1e-6)
    edge = _log(tmp_path, "time_h,cause", ["0,a", f"{1 / 6:.9f},a", "9,a"])  # ten minutes are no burst
    assert fit_log(edge, 64, 50.0).bursts.share == 0.0
    all_of_them = _log(tmp_path, "time_h,cause", [f"{i / 3600:.9f},a" for i in range(4000)])
    assert fit_log(all_of_them, 64, 9000.0).bursts.share == 0.99


@pytest.mark.parametrize(
    ("failures", "nodes", "hosts", "share"),
    [
        ([5, *[1] * 5], 64, 1 / 64, 5 / 10),
        ([5, 4, *[1] * 3], 64, 2 / 64, 9 / 12),
        ([5, *[1] * 4], 64, 0, 0),  # nine failures say nothing
        ([2, *[1] * 8], 6400, 0, 0),  # twice may be chance
        ([4, *[1] * 40], 64, 0, 0),  # and so may four of 44 over 64 nodes
        ([5, 5, 5], 3, 0, 0),  # all nodes alike
    ],
)
def test_a_lemon_fails_more_often_than_chance(
    failures: list[int], nodes: int, hosts: float, share: float, tmp_path: Path
) -> None:
    rows = [f"crash,n{node}" for node, count in enumerate(failures) for _ in range(count)]
    log = _log(tmp_path, "count,cause,node", [f"1,{row}" for row in rows])
    lemons = fit_log(log, nodes * 8, 30.0).lemons
    assert (lemons.share_of_hosts, lemons.share_of_failures) == (pytest.approx(hosts), pytest.approx(share))


def test_a_log_that_cannot_be_is_one_clear_error(tmp_path: Path) -> None:
    for header, rows, said in (
        ("cause,count", ["a,-1"], "no whole number"),
        ("cause,count", [" ,1"], "without a cause"),
        ("time_h,cause", ["soon,a"], "no number"),
        ("when,cause", ["1,a"], "no columns"),
    ):
        with pytest.raises(InputFileError, match=said):
            fit_log(_log(tmp_path, header, rows), 8, 1.0)
    with pytest.raises(SpecError, match="how many days"):
        fit_log(_log(tmp_path, "cause,count", ["a,1"]), 8, 0.0)


def test_second_failures_of_bursts_are_events_and_take_hosts_too() -> None:
    """Of 16 GPUs on two nodes; a fault of two racks' hosts, one of the job, and what is planned."""
    causes = (
        Cause("chip", "gpu", "gpu", 1e-8), Cause("rack", "rack", "node", 5e-8, hosts=3),
        Cause("bug", "software", "job", 7e-8, hosts=0), Cause("upgrade", "planned", "job", 9e-8, symptom="planned"),
    )  # fmt: skip
    process = FailureProcess("own", "by hand", causes, bursts=Bursts(0.5))
    unplanned = (16 * 1e-8 + 2 * 5e-8 + 7e-8) * 1.5
    assert process.rate_per_s(16, 8) == pytest.approx(unplanned)
    assert process.mttf_s(16, 8) == pytest.approx(1 / unplanned)
    assert process.events(16, 8, 1e6) == pytest.approx((unplanned + 9e-8 * 1.5) * 1e6)
    assert process.host_rate_per_s(8) == pytest.approx((8 * 1e-8 + 3 * 5e-8) * 1.5)
