"""Spot machines: formulas read, costs to the millisecond, and recorded decisions of Parcae found again.

EVENTS and the two rows of decisions are the first minutes of Parcae's own log of BERT (github JF-D/Parcae efedee7,
MIT).
"""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from windtunnel.errors import InputFileError, SpecError
from windtunnel.faces.cli.app import main
from windtunnel.physics.engine.compiled import spot_kernels
from windtunnel.studies.resilience.spot.formula import parse_cases, parse_formula
from windtunnel.studies.resilience.spot.moves import Moves, move_ms
from windtunnel.studies.resilience.spot.policies import fastest, on_demand, parcae, varuna
from windtunnel.studies.resilience.spot.study import survive_spot
from windtunnel.studies.resilience.spot.tables import SpotModel, read_model
from windtunnel.studies.resilience.spot.trace import Minute, SpotTrace, read_steps, read_trace

# Nodes that come and go in each minute; a dot: none.
EVENTS = """
18-0 1-0 . 4-0 . 1-0 1-0 2-0 . . . 2-0 . 1-0 . . . . . . . . . . 1-0 1-0 . . . . . . . . 0-4 . . . . . . . .
4-0 . . . . . . . 0-6 . 0-3 0-1 0-1 . 0-3 . 0-3 . 6-0 . . . 2-0 . 1-0 . 1-0 3-0 4-0 . . . . . 0-1 . 0-2 1-0
1-0 . 1-0 . 0-3 . 0-1 . 0-2
"""
LIVEPUT = """
4x4 4x4 4x4 11x2 11x2 11x2 11x2 9x3 9x3 9x3 9x3 9x3 9x3 10x3 10x3 10x3 10x3 10x3 10x3 10x3 10x3 10x3 10x3 10x3
10x3 8x4 8x4 8x4 8x4 8x4 8x4 8x4 8x4 8x4 9x3 9x3 9x3 9x3 9x3 9x3 9x3 9x3 9x3 8x4 8x4 8x4 8x4 8x4 8x4 8x4 8x4
13x2 13x2 11x2 7x3 10x2 10x2 4x4 4x4 5x3 5x3 7x3 7x3 7x3 7x3 7x3 7x3 8x3 8x3 8x3 8x3 8x4 8x4 8x4 8x4 8x4 8x4
10x3
"""
THROUGHPUT = """
4x4 4x4 4x4 11x2 11x2 8x3 8x3 9x3 9x3 9x3 9x3 9x3 9x3 10x3 10x3 10x3 10x3 10x3 10x3 10x3 10x3 10x3 10x3 10x3
10x3 8x4 8x4 8x4 8x4 8x4 8x4 8x4 8x4 8x4 9x3 9x3 9x3 9x3 9x3 9x3 9x3 9x3 9x3 8x4 8x4 8x4 8x4 8x4 8x4 8x4 8x4
13x2 13x2 11x2 11x2 7x3 7x3 4x4 4x4 5x3 5x3 7x3 7x3 7x3 7x3 11x2 11x2 8x3 8x3 8x3 9x3 8x4 8x4 8x4 8x4 8x4 8x4
10x3
"""


TABLES = Path(spot_kernels.__file__).parents[3] / "studies" / "resilience" / "spot" / "catalogue"
NOBODY = np.full((1, 1), 10**6)


@pytest.fixture(scope="module")
def bert() -> SpotModel:
    return read_model(TABLES, "bert")


def trace_text() -> str:
    pairs = [(0, 0) if word == "." else tuple(map(int, word.split("-"))) for word in EVENTS.split()]
    return "minute,added,removed\n" + "".join(f"{at},{a},{r}\n" for at, (a, r) in enumerate(pairs))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "spot.csv"
    path.write_text(trace_text())
    return path


def test_recorded_decisions_are_found_again(bert: SpotModel, trace: Path) -> None:
    recorded = [tuple(map(int, word.split("x"))) for word in LIVEPUT.split()]
    found = [one.layout for one in parcae(Moves(bert), read_trace(trace), bert.look_ahead)]
    agreeing = sum(a == b for a, b in zip(found, recorded, strict=False))
    assert agreeing >= 0.98 * len(recorded)
    fast = [tuple(map(int, word.split("x"))) for word in THROUGHPUT.split()]
    assert [fastest(bert, minute.nodes) for minute in read_trace(trace).minutes][: len(fast)] == fast


def test_the_command_line_writes_decisions(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.csv"
    words = ["survive", "spot", str(trace), "bert", "--policy", "parcae,varuna,on-demand", "--json"]
    assert main([*words, "--rows", str(out)]) == 0
    document = json.loads(capsys.readouterr().out)
    rows = list(csv.DictReader(out.open()))
    assert list(rows[0]) == ["minute", "d", "p"]
    assert [(one["minute"], one["d"], one["p"]) for one in document["policies"][0]["decisions"]] == [
        tuple(map(int, row.values())) for row in rows
    ]
    assert [one["policy"] for one in document["policies"]] == ["parcae", "varuna", "on-demand"]
    for one in document["policies"]:
        assert sum(one["waterfall"].values()) == pytest.approx(document["wall_s"])
        assert one["samples"] == pytest.approx(sum(each["samples"] for each in one["decisions"]))
    assert document["policies"][0]["samples"] > document["policies"][1]["samples"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (r".*,p2p_us,.*\n", "", "has no p2p_us for bert"),
        ("interval_s,,60", "interval_s,,30", "a decision every 30 s"),  # the trace has minutes
        ("interval_s,,60", "interval_s,,0", "interval_s not above 0"),
        ("bert,pipeline_depth_min,,2", "bert,pipeline_depth_min,,0", "pipeline_depth_min"),
        ("bert,process_start_ms,,30", "bert,process_start_ms,,30 / (P - 2)", "cannot be read"),
    ],
)
def test_a_table_that_cannot_be_is_one_message(
    old: str, new: str, said: str, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("parcae_constants.csv", "parcae_throughput.csv"):
        text = (TABLES / name).read_text()
        (tmp_path / name).write_text(re.sub(old, new, text) if "constants" in name else text)
    assert main(["survive", "spot", str(trace), "bert", "--tables", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err


def test_costs_to_the_millisecond(bert: SpotModel) -> None:
    """By hand from the published constants: groups 35 + 1000 (D < 6), process 30, build 1123 at P = 3, rendezvous
    6600.
    """
    assert bert.restart_ms((2, 3), adding=False) == 35 + 1000 + 30 + 1123
    assert bert.restart_ms((2, 3), adding=True) == 35 + 1.5 * 1000 + 6600 + 30 + 1123
    assert bert.restart_ms((12, 2), adding=False) == 35 + 2000 + 30 + 1752
    assert bert.regroup_ms((7, 3)) == 35 + 1500 + 30
    nothing, fewer, more = move_ms(bert, (3, 3), [(3, 3), (2, 3), (4, 3)], 0, NOBODY)
    assert nothing == 0.0
    assert fewer == bert.regroup_ms((2, 3))
    longest = bert.stage_ms(3).max()
    # One more replica: the last stage is short by one of four, as are all; each is sent from a survivor, at one time.
    assert more == pytest.approx(longest + bert.restart_ms((4, 3), adding=True), abs=1e-9)


def test_a_stage_without_survivor_is_sent_alone(bert: SpotModel) -> None:
    both_of_stage_0 = np.array([[0, 3]])
    (cost,) = move_ms(bert, (2, 3), [(1, 3)], 2, both_of_stage_0)
    assert cost == pytest.approx(bert.stage_ms(3)[0] + bert.restart_ms((1, 3), adding=False))
    one_of_each = np.array([[0, 1]])
    (cost,) = move_ms(bert, (2, 3), [(1, 3)], 2, one_of_each)
    assert cost == bert.regroup_ms((1, 3))


def test_compiled_and_plain_say_the_same(bert: SpotModel, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    draws = np.array([random.choice(14, 3, replace=False) for _ in range(4)])
    targets = bert.layouts(12)
    fast = move_ms(bert, (3, 4), targets, 3, draws)
    from windtunnel.studies.resilience.spot import moves

    monkeypatch.setattr(spot_kernels, "transfer_ms", spot_kernels.transfer_ms.py_func)
    monkeypatch.setattr(moves, "mean_move_ms", spot_kernels.mean_move_ms.py_func)
    assert np.allclose(move_ms(bert, (3, 4), targets, 3, draws), fast, rtol=1e-12)


def test_knowing_the_future_is_worth_samples(bert: SpotModel, trace: Path) -> None:
    recorded = read_trace(trace)
    moves = Moves(bert)
    known, blind = (sum(one.samples for one in parcae(moves, recorded, 12, word)) for word in ("known", "persistence"))
    assert known >= blind > sum(one.samples for one in varuna(bert, recorded))


def test_no_sample_is_made_without_machines(bert: SpotModel) -> None:
    found = parcae(Moves(bert), SpotTrace((Minute(0, 1, 0), Minute(1, 7, 0), Minute(8, 0, 8))), 3)
    assert [one.layout[0] * one.layout[1] > 0 for one in found] == [False, True, False]
    assert found[0].samples == found[2].samples == 0.0


@pytest.mark.parametrize(
    ("text", "d", "p", "removal", "addition"),
    [
        (
            "35 + (2000 if D >= 12, 1500 if D >= 6, else 1000) removal; 1.5 x the second term on addition",
            12,
            2,
            2035,
            3035,
        ),
        (
            "35 + (2000 if D >= 12, 1500 if D >= 6, else 1000) removal; 1.5 x the second term on addition",
            6,
            2,
            1535,
            2285,
        ),
        ("35 + 39.3 x (D+P+1+D P) removal; 35 + 500 x (D+P+1+D P) addition", 2, 9, 35 + 39.3 * 30, 35 + 500 * 30),
        ("100", 3, 3, 100, 100),
        ("20 + 3 D", 3, 3, 29, 29),
    ],
)
def test_formulas_of_two_cases(text: str, d: int, p: int, removal: float, addition: float) -> None:
    cases = parse_cases(text, "x")
    assert cases.removal(d, p) == pytest.approx(removal)
    assert cases.addition(d, p) == pytest.approx(addition)


def test_a_formula_is_read_and_nothing_is_run() -> None:
    assert parse_formula("234.8 + 430 x ceil(48/P)", "x")(2, 7) == 234.8 + 430 * 7
    assert parse_formula("max(3, D) - 2 * P / 4", "x")(5, 2) == 4.0
    for text in ("", "3 +", "(3", "__import__('os')", "Q + 1", "3 ; 4", "3 if D", "True", "2 ** 3", "(" * 9999):
        with pytest.raises(SpecError):
            parse_formula(text, "x")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "no trace"),
        ("minute,added,removed\n0,1,0\n2,1,0\n", "skips"),
        ("minute,added,removed\n0,1,2\n", "more nodes go"),
        ("time_s,event,node\n0,vanish,n\n", "vanish"),
        ("time_s,event,node\nsoon,add,n\n", "no number"),
        ("time_s,event,node\ninf,add,n\n", "no number"),
        ("time_s,event,node\n0,add,n\n9e8,add,n\n", "intervals of 60 s"),
    ],
)
def test_a_wrong_trace_is_one_clear_error(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(InputFileError, match=said):
        read_trace(path)


def test_events_in_seconds_and_counts_by_minute_are_the_same(tmp_path: Path) -> None:
    events, counts = tmp_path / "events.csv", tmp_path / "counts.csv"
    events.write_text("time_s,event,node\n0,add,a\n0,add,b\n119.9,remove,a\n180,add,c\n")
    counts.write_text("minute,added,removed\n0,2,0\n1,0,1\n2,0,0\n3,1,0\n")
    assert read_trace(events) == read_trace(counts)


def test_stamps_count_from_the_first_event_and_only_seconds_with_events_are_kept(tmp_path: Path) -> None:
    path, counts = tmp_path / "epoch.csv", tmp_path / "counts.csv"
    path.write_text("time_s,event,node\n1.7e9,add,a\n1700000000.4,add,b\n1700000060.2,remove,a\n2e9,add,c\n")
    assert read_steps(path) == (2, ((60.0, 0, 1), (3e8, 1, 0)))
    path.write_text("time_s,event,node\n1.7e9,add,a\n1700000060.2,remove,a\n")
    assert read_trace(path) == SpotTrace((Minute(0, 1, 0), Minute(1, 0, 1)), 28333333)
    counts.write_text("minute,added,removed\n5,2,0\n6,0,0\n7,1,1\n")
    assert read_steps(counts) == (2, ((120.0, 1, 1),))


def test_nodes_are_paid_for_while_they_are_there_and_fixed_ones_all_the_time(tmp_path: Path) -> None:
    """Four nodes, then two, then three: 9 node-intervals on spot machines; of fixed ones the largest pool, 12."""
    path = tmp_path / "three.csv"
    path.write_text("minute,added,removed\n0,4,0\n1,0,2\n2,1,0\n")
    answer = survive_spot(path, model="bert", usd_per_gpu_hour=3.0, usd_per_spot_gpu_hour=1.0)
    hours = {one.policy: one.node_hours for one in answer.entries}
    each = answer.interval_s / 3600
    assert hours == pytest.approx({"parcae": 9 * each, "varuna": 9 * each, "on-demand": 12 * each})
    dollars = {one.policy: one.cost_usd for one in answer.entries}
    assert dollars == pytest.approx({"parcae": 9 * each, "varuna": 9 * each, "on-demand": 3 * 12 * each})
    for one in answer.entries:
        assert sum(one.waterfall.values()) == pytest.approx(3 * answer.interval_s)


def test_money_is_hours_times_the_price_of_the_kind_of_machine(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["survive", "spot", str(trace), "bert", "--policy", "varuna,on-demand", "--json"]
    assert main([*words, "--price", "3", "--spot-price", "1"]) == 0
    varuna_, fixed = json.loads(capsys.readouterr().out)["policies"]
    assert varuna_["cost_usd"] == pytest.approx(varuna_["node_hours"])
    assert fixed["cost_usd"] == pytest.approx(3 * fixed["node_hours"])
    assert fixed["usd_per_million_samples"] == pytest.approx(fixed["cost_usd"] / fixed["samples"] * 1e6)
    assert main([*words, "--price", "3"]) == 0
    assert [one["cost_usd"] for one in json.loads(capsys.readouterr().out)["policies"]] == [None, fixed["cost_usd"]]
    assert main([*words, "--spot-price", "-1"]) == 2
    assert "--spot-price" in capsys.readouterr().err


def test_a_restart_takes_from_the_minutes_that_follow_it(bert: SpotModel) -> None:
    """A layout that starts on the fifth node, loses two, and starts again: samples are what is left of each minute."""
    interval_s = bert.interval_s
    trace = SpotTrace((Minute(0, 4, 0), Minute(4, 0, 0), Minute(4, 0, 2), Minute(2, 0, 0)), 0)
    layouts = [fastest(bert, nodes) for nodes in (4, 4, 2, 2)]
    assert layouts[0] != layouts[2]
    first = bert.checkpoint_ms + bert.restart_ms(layouts[0], adding=True)
    # Two nodes are left of four: the new layout needs no node that was not of the old one.
    adding = layouts[2][0] * layouts[2][1] > layouts[0][0] * layouts[0][1] - 2
    second = bert.checkpoint_ms + bert.restart_ms(layouts[2], adding=adding)
    found = varuna(bert, trace)
    assert [one.layout for one in found] == layouts
    assert [one.move_ms for one in found] == pytest.approx([first, 0.0, second, 0.0])

    def idle(cost_ms: float) -> list[float]:
        return [min(cost_ms / 1000, interval_s), min(max(0.0, cost_ms / 1000 - interval_s), interval_s)]

    assert [one.idle_s for one in found] == pytest.approx(idle(first) + idle(second))
    rates = [bert.samples_per_s[layout] for layout in layouts]
    by_hand = [rate * (interval_s - one.idle_s) for rate, one in zip(rates, found, strict=True)]
    assert [one.samples for one in found] == pytest.approx(by_hand)
    fixed = on_demand(bert, trace)
    assert {one.layout for one in fixed} == {layouts[0]}
    start = bert.restart_ms(layouts[0], adding=True)
    assert [one.move_ms for one in fixed] == pytest.approx([start, 0, 0, 0])
    assert [one.idle_s for one in fixed[:2]] == pytest.approx(idle(start))
    empty = varuna(bert, SpotTrace((Minute(0, 0, 0),), 0))
    assert (empty[0].layout, empty[0].samples, empty[0].idle_s) == ((0, 0), 0.0, interval_s)
    nobody = on_demand(bert, SpotTrace((Minute(0, 0, 0),), 0))
    assert (nobody[0].layout, nobody[0].move_ms) == ((0, 0), 0.0)


def test_a_node_that_goes_ends_a_job_that_has_most_of_the_nodes(bert: SpotModel) -> None:
    """Eight nodes of 20, of 19 and of 15: the first two lose idle ones, 8 > 15 - 8 one of the job."""
    model = replace(bert, samples_per_s={(2, 4): 1.0})
    trace = SpotTrace((Minute(0, 20, 0), Minute(20, 0, 1), Minute(19, 0, 4), Minute(15, 0, 1), Minute(14, 0, 0)), 0)
    again = model.checkpoint_ms + model.restart_ms((2, 4), adding=True)  # seven of its nodes are left
    found = varuna(model, trace)
    assert [one.layout for one in found] == [(2, 4)] * 5
    assert [one.move_ms for one in found] == pytest.approx([again, 0, 0, again, 0])
