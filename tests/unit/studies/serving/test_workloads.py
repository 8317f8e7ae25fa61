from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from prices import plain_times

from windtunnel import Deployment, serve
from windtunnel.errors import InputFileError, SpecError, UserError
from windtunnel.studies.serving.goodput import at_rate, goodput_of, rate_of
from windtunnel.studies.serving.loop import simulate
from windtunnel.studies.serving.measures import stamps_of
from windtunnel.studies.serving.replica import Replica, Rules
from windtunnel.studies.serving.result import ServingResult
from windtunnel.studies.serving.workload.files import read_workload
from windtunnel.studies.serving.workload.lengths import arrivals, lengths
from windtunnel.studies.serving.workload.requests import LONGEST_S, Workload


@pytest.mark.parametrize(("cv", "least", "most"), [(0.0, 0.0, 1e-6), (1.0, 0.9, 1.1), (4.0, 3.0, 5.0)])
def test_arrivals_have_the_rate_and_burstiness_asked_for(cv: float, least: float, most: float) -> None:
    times = arrivals(40_000, 7.0, cv, 1) * 1e-9
    gaps = np.diff(times)
    assert 1 / gaps.mean() == pytest.approx(7.0, rel=0.1)
    assert least <= gaps.std() / gaps.mean() <= most


def test_two_rates_share_their_random_numbers() -> None:
    slow, fast = arrivals(500, 2.0, 1.0, 5), arrivals(500, 8.0, 1.0, 5)
    assert np.abs(slow / 4 - fast).max() <= 1


def test_closed_loops_keep_so_many_in_flight() -> None:
    prompts, outputs = lengths(60, 100, 50, 0.8, 0)
    replica = Replica(plain_times(), Rules(), 1000)
    sent, _ = simulate(Workload(prompts, outputs, None, 6), [replica], None, block_size=16)
    events = sorted([(one.arrival_ns, 1) for one in sent] + [(one.last_ns, -1) for one in sent])
    flying = np.cumsum([change for _, change in events])
    assert len(sent) == 60
    assert flying.max() == 6
    assert prompts.min() >= 80
    assert prompts.max() <= 100


def test_no_unit_of_time_is_guessed_in_silence(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    times = [0, 500, 1500]

    def read(column: str, names: str, values: list[object], rate: float | None = None) -> Workload:
        file.write_text("".join(f"{row}\n" for row in [f"{column},{names}", *(f"{one},9,3" for one in values)]))
        return read_workload(file, rate_per_s=rate)

    own = read("arrival_s", "input_tokens,output_tokens", [one / 1000 for one in times])
    assert not own.notes
    mooncake = read("timestamp", "input_length,output_length", times)
    assert mooncake.arrival_ns is not None
    assert own.arrival_ns is not None
    assert mooncake.arrival_ns.tolist() == own.arrival_ns.tolist()
    assert "in ms" in mooncake.notes[0]
    assert "3 arrivals in 1.50 s" in mooncake.notes[0]
    burst = read("Timestamp", "Request tokens,Response tokens", [0, 0.5, 1.5])
    assert burst.arrival_ns is not None
    assert burst.arrival_ns.tolist() == own.arrival_ns.tolist()
    for column, names in (
        ("timestamp", "input_length,output_length"),  # Mooncake's are whole milliseconds
        ("timestamp", "input_tokens,output_tokens"),
        ("Timestamp", "input_tokens,output_tokens"),
    ):
        with pytest.raises(InputFileError, match="arrival_s"):
            read(column, names, [0, 0.5, 1.5])
        scaled = read(column, names, [0, 0.5, 1.5], rate=4.0)  # made to a rate: a unit says nothing
        assert not scaled.notes
        assert scaled.arrival_ns is not None
        assert np.ptp(scaled.arrival_ns) == pytest.approx(0.5e9)
    dates = read("timestamp", "input_tokens,output_tokens", ["2023-11-16 18:01:50", "2023-11-16 18:01:51"])
    assert not dates.notes
    assert dates.arrival_ns is not None
    assert np.ptp(dates.arrival_ns) == 10**9


def test_files_are_read_by_their_columns(tmp_path: Path) -> None:
    azure = tmp_path / "azure.csv"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:01:51.1,10,3\n2023-11-16 18:01:50.1,20,4\n"
    )
    load = read_workload(azure)
    assert load.input_tokens.tolist() == [20, 10]
    assert load.arrival_ns is not None
    assert load.arrival_ns[1] - load.arrival_ns[0] == pytest.approx(1e9, rel=1e-3)
    mooncake = tmp_path / "m.jsonl"
    mooncake.write_text('{"timestamp": 5, "input_length": 1100, "output_length": 2, "hash_ids": [4, 5]}\n')
    one = read_workload(mooncake)
    assert one.names_in(512) == ([(4, 5)], 1)
    assert one.names_in(256) == ([(4, 5)], 2)
    assert one.names_in(1024) == ([(5,)], 1)
    plain = tmp_path / "p.csv"
    plain.write_text("input_tokens,output_tokens\n5,5\n")
    with pytest.raises(InputFileError, match="arrivals"):
        read_workload(plain)
    assert len(read_workload(plain, rate_per_s=3.0)) == 1
    for text in (
        "input_tokens,output_tokens,arrival_s\nx,1,0\n",
        "input_tokens,output_tokens,arrival_s\n0,1,0\n",
        "a,b\n1,2\n",
    ):
        plain.write_text(text)
        with pytest.raises(InputFileError):
            read_workload(plain)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.csv", "input_tokens,output_tokens,arrival_s\n5,5,0\n\n5.5,5,1\n", "line 4: input_tokens = '5.5'"),
        ("a.csv", "input_tokens,output_tokens,arrival_s\n1e30,5,0\n", "line 2: input_tokens = 1e\\+30"),
        ("a.csv", "input_tokens,output_tokens,arrival_s\ninf,5,0\n", "line 2: input_tokens = 'inf'"),
        ("a.csv", "input_tokens,output_tokens,arrival_s\n5,5,0\n5,5,nan\n", "line 3: arrival_s = 'nan'"),
        ("a.csv", "input_tokens,output_tokens,arrival_s\n5,5,0\n5,5,1e12\n", "ten years"),
        ("a.csv", "input_tokens,output_tokens,arrival_s\n5,5,2023-11-16\n5,5,1\n", "line 3: .*dates and numbers"),
        ("a.jsonl", '{"input_tokens": 5, "output_tokens": 0, "arrival_s": 0}\n', "line 1: output_tokens = 0"),
    ],
)
def test_odd_values_of_a_file_are_named_with_their_line(tmp_path: Path, name: str, text: str, told: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputFileError, match=told):
        read_workload(tmp_path / name)


def test_blanks_after_commas_and_marks_of_other_systems_are_read_past(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(b"\xef\xbb\xbfarrival_s, input_tokens, output_tokens\r\n0, 7, 5.0\r\n")
    load = read_workload(file)
    assert (load.input_tokens.tolist(), load.output_tokens.tolist()) == ([7], [5])


def test_arrivals_that_no_clock_holds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="rate = 1e-12"):
        arrivals(1000, 1e-12, 1.0, 0)
    file = tmp_path / "a.csv"
    file.write_text("input_tokens,output_tokens,arrival_s\n5,5,0\n5,5,1\n")
    with pytest.raises(SpecError, match="rate = 1e-12"):
        read_workload(file, rate_per_s=1e-12)


def test_the_search_for_a_slow_enough_rate_ends_in_ten_years() -> None:
    def run(load: Workload) -> ServingResult:
        assert load.arrival_ns is not None
        assert load.arrival_ns.min() >= 0
        assert load.arrival_ns.max() < 1e9 * LONGEST_S
        return serve("gpt2", "h100-sxm:1", Deployment(), load, slo={"ttft_s": 1e-9})

    load = Workload(np.full(20, 50), np.full(20, 5), arrivals(20, 1e-4, 1.0, 0))
    assert goodput_of(run, load, 0.9).goodput_requests_per_s == 0.0


def test_empty_and_contradictory_workloads_are_refused() -> None:
    none = np.array([], dtype=np.int64)
    one = np.array([1], dtype=np.int64)
    with pytest.raises(SpecError):
        Workload(none, none, none)
    with pytest.raises(SpecError):
        Workload(one, one)
    with pytest.raises(SpecError):
        Workload(one, one, one, concurrency=3)


def test_goodput_is_the_edge_of_attainment() -> None:
    from windtunnel.physics.hardware import parse_cluster
    from windtunnel.physics.model import load_model
    from windtunnel.studies.serving import Deployment, engine_of, serve_with

    engine = engine_of(load_model("llama-3.1-8b"), parse_cluster("h100-sxm:1"), Deployment())
    prompts, outputs = lengths(300, 512, 128, 0.5, 0)
    load = Workload(prompts, outputs, arrivals(300, 4.0, 1.0, 0))
    slo = {"ttft_s": 0.3, "tpot_s": 0.03}
    found = goodput_of(lambda one: serve_with(engine, one, slo=slo), load, 0.9)
    assert found.search is not None
    rate = found.goodput_requests_per_s
    assert rate is not None
    assert rate > 0
    kept = serve_with(engine, at_rate(load, rate), slo=slo).slo_attainment
    missed = serve_with(engine, at_rate(load, found.search.missed_at_per_s), slo=slo).slo_attainment
    assert kept is not None
    assert missed is not None
    assert kept >= 0.9 > missed
    assert rate_of(at_rate(load, 9.0)) == pytest.approx(9.0, rel=0.01)


def test_a_rate_that_is_never_reached_is_no_goodput() -> None:
    from windtunnel.physics.hardware import parse_cluster
    from windtunnel.physics.model import load_model
    from windtunnel.studies.serving import Deployment, engine_of, serve_with

    engine = engine_of(load_model("llama-3.1-8b"), parse_cluster("h100-sxm:1"), Deployment(max_num_seqs=256))
    slo = {"ttft_s": 60.0}  # as long as the whole run: a burst meets it, too
    prompts, outputs = lengths(600, 100, 20, 1.0, 0)
    load = Workload(prompts, outputs, arrivals(600, 1.0, 1.0, 0))
    found = goodput_of(lambda one: serve_with(engine, one, slo=slo), load, 0.99)
    assert found.regime != "over"
    served = serve_with(engine, Workload(prompts, outputs, None, 600), slo=slo).requests_per_s
    assert found.goodput_requests_per_s is not None
    assert found.goodput_requests_per_s < 1.5 * served
    assert found.search is not None
    assert found.search.warning is None
    few = Workload(prompts[:20], outputs[:20], arrivals(20, 1.0, 1.0, 0))
    with pytest.raises(UserError, match="more requests"):
        goodput_of(lambda one: serve_with(engine, one, slo=slo), few, 0.99)
    told = goodput_of(lambda one: serve_with(engine, one, slo={"ttft_s": 0.045}), few, 0.99).search
    assert told is not None
    assert "20 were there" in str(told.warning)


def test_a_calendars_times_are_moved_to_the_first_request_and_dates_know_no_unit(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    head = "arrival_ms,input_tokens,output_tokens\n"
    for first, second, moved in (
        ("2023-11-16 18:01:50", "2023-11-16 18:01:52", [0, 2 * 10**9]),
        ("2023-11-16T18:01:50+02:00", "2023-11-16T18:01:52+02:00", [0, 2 * 10**9]),
        ("1700157710000", "1700157712000", [0, 2 * 10**9]),
        ("500", "2500", [5 * 10**8, 25 * 10**8]),  # from the start of the run: they stay
    ):
        path.write_text(f"{head}{first},5,5\n{second},5,5\n")
        load = read_workload(path)
        assert load.arrival_ns is not None
        assert load.arrival_ns.tolist() == moved


def test_requests_of_one_token_have_no_time_per_token() -> None:
    outputs = np.array([1, 6, 1, 4])
    replica = Replica(plain_times(), Rules(), 1000)
    sent, _ = simulate(Workload(np.full(4, 50), outputs, None, 2), [replica], None, block_size=16)
    found = stamps_of(sent)
    assert len(found.e2e) == 4
    assert found.tpot.tolist() == pytest.approx(
        [(o.last_ns - o.first_ns) / (o.output - 1) * 1e-9 for o in sent if o.output > 1]
    )


def test_stamps_go_to_the_row_of_the_file_whatever_the_order_of_arrival(tmp_path: Path) -> None:
    path = tmp_path / "late_first.csv"
    path.write_text("input_tokens,output_tokens,arrival_s\n100,10,5\n5000,300,1\n")
    result = serve("llama-3.1-8b", "h100-sxm:1", Deployment(), read_workload(path))
    rows = list(csv.DictReader(result.requests_csv().splitlines()))
    assert [(row["request"], float(row["queued_s"])) for row in rows] == [("0", 5.0), ("1", 1.0)]


@pytest.mark.parametrize("wrong", [{"rate_per_s": 0.0}, {"rate_per_s": float("nan")}, {"rate_per_s": 1.0, "cv": 3.0}])
def test_a_file_with_arrivals_is_scaled_to_a_rate_that_can_be_and_to_no_burstiness(
    tmp_path: Path, wrong: dict[str, float]
) -> None:
    path = tmp_path / "two.csv"
    path.write_text("input_tokens,output_tokens,arrival_s\n100,10,1\n100,10,5\n")
    assert read_workload(path, rate_per_s=1.0).arrival_ns.tolist() == [0, 10**9]  # type: ignore[union-attr]
    with pytest.raises(SpecError, match=next(reversed(wrong)).removesuffix("_per_s")):
        read_workload(path, **wrong)  # type: ignore[arg-type]
