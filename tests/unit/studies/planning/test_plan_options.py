"""Every option of `plan`, as a user gives it, on spaces small enough to look through."""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import windtunnel
from windtunnel.errors import UserError
from windtunnel.faces.cli.app import main
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.studies.planning.answers.compared import decides, field_words
from windtunnel.studies.planning.objectives.robust import Trouble, progress
from windtunnel.studies.planning.oracle import laid_out, memory_bytes, straggling
from windtunnel.studies.planning.search.best_first import Search
from windtunnel.studies.planning.search.bounds import Bounds
from windtunnel.studies.planning.space.features import FEATURES
from windtunnel.studies.planning.space.plan_space import Space, context_kinds, savings, structures
from windtunnel.studies.planning.space.thumb import rule_of_thumb

FIXED = ["--global-batch", "16", "--seq-len", "2048", "--tp", "2", "--pp", "1", "--cp", "1", "--recompute", "none"]


def asked(capsys: pytest.CaptureFixture[str], *words: str, cluster: str = "h100-sxm:8", status: int = 0) -> Any:
    assert (
        main(["plan", "llama-3-8b", "--cluster", cluster, *FIXED, "--set", "model.layers=4", *words, "--json"])
        == status
    )
    return json.loads(capsys.readouterr().out)


def test_trouble_ranks_by_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    calm = asked(capsys)
    document = asked(capsys, "--slow", "gpu=3:1.3", "--mtbf", "6h")
    effective = [one["effective_step_time_s"] for one in document["plans"]]
    assert document["gap"] == 0.0
    assert effective == sorted(effective)
    assert all(one["effective_step_time_s"] > one["step_time_s"] for one in document["plans"])
    # All wait for the slow GPU, and failures cost at least their restarts.
    assert effective[0] > calm["plans"][0]["step_time_s"] * 1.1 * (1.0 + 300.0 / 21600.0)
    assert calm["plans"][0]["effective_step_time_s"] is None


def test_under_trouble_plans_are_compared_by_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    """Checkpoints so often that what a rank has to write decides: the rule's plan has the shorter step, and loses."""
    document = asked(capsys, "--mtbf", "3s", "--micro-batch", "1")
    best, thumb = document["plans"][0], document["rule_of_thumb"]
    apart = thumb["effective_step_time_s"] / best["effective_step_time_s"] - 1.0
    assert thumb["step_time_s"] < best["step_time_s"]
    assert document["rule_of_thumb_loses"].startswith(f"{apart:.1%} slower")
    first, second = (one["effective_step_time_s"] for one in document["plans"][:2])
    assert f"takes {second / first - 1.0:.2%} more under trouble; without any: " in document["decides"]


def test_degrees_that_do_not_go_into_the_gpus_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "llama-3-8b", "--cluster", "h100:8", *FIXED, "--dp", "8"]) == 2
    assert "dp = 8, but 8 GPUs / (tp 2" in capsys.readouterr().err


def test_progress_is_the_best_interval_of_any() -> None:
    mtbf, write, restart = 21600.0, 20.0, 300.0
    tried = [interval / ((mtbf + restart) * math.expm1((interval + write) / mtbf)) for interval in range(60, 6000, 10)]
    assert progress(write, mtbf) == pytest.approx(max(tried), rel=1e-4)
    assert progress(write, mtbf) < progress(0.0, mtbf) == Trouble(mtbf_s=mtbf).most_progress == mtbf / (mtbf + restart)
    assert progress(write, None) == 1.0


def test_numbers_of_gpus_fronts_and_prices(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--gpus", "4..8", "--objective", "cost", "--price", "2.5", "--pareto")
    document = asked(capsys, *words)
    costs = [one["cost_per_million_tokens"] for one in document["plans"]]
    assert costs == sorted(costs)
    assert costs[0] == pytest.approx(2.5 * document["plans"][0]["gpu_hours_per_million_tokens"])
    parts = [
        (one["step_time_s"], one["gpu_hours_per_million_tokens"], one["peak_memory_bytes"]) for one in document["front"]
    ]
    assert {one["n_gpus"] for one in document["front"]} == {4, 8}
    for mine in parts:
        assert not any(other != mine and all(a <= b for a, b in zip(other, mine, strict=True)) for other in parts)
    # Each line predicts what it says.
    best = document["plans"][0]
    assert main([*best["reproduce"].split()[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_time_ns"] == round(best["step_time_s"] * 1e9)


@pytest.mark.parametrize(
    ("objective", "part", "sign"), [("memory", "peak_memory_bytes", 1), ("energy", "tokens_per_joule", -1)]
)
def test_other_objectives(capsys: pytest.CaptureFixture[str], objective: str, part: str, sign: int) -> None:
    plans = asked(capsys, "--objective", objective, "--pareto")["plans"]
    values = [sign * plan[part] for plan in plans]
    assert values == sorted(values)


def test_no_plan_takes_less_energy_than_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Every structure and saving of the space, predicted; and the sentences compare energy, not time."""
    document = asked(capsys, "--objective", "energy", "--micro-batch", "1", "--top", "2")
    best, second = document["plans"]
    model = load_model("llama-3-8b").with_changes(layers=4)
    given = {"global_batch": 16, "seq_len": 2048, "tp": 2, "pp": 1, "cp": 1, "recompute": "none", "micro_batch": 1}
    space = Space(model, parse_cluster("h100-sxm:8"), given)
    found = [
        windtunnel.predict(model, structure.cluster, structure.user_plan.with_fields(saving))
        for structure in structures(space)
        for saving in savings(space, structure)
    ]
    most = max(1.0 / one.joules_per_token for one in found)
    assert most * (1.0 - 1e-9) <= best["tokens_per_joule"] / (1.0 - document["gap"])
    again = windtunnel.predict(model, "h100-sxm:8", best["plan"])
    assert best["tokens_per_joule"] == pytest.approx(1.0 / again.joules_per_token)
    apart = best["tokens_per_joule"] / second["tokens_per_joule"] - 1.0
    assert f"takes {apart:.2%} more energy and " in document["decides"]
    assert document["choices"] == document["sensitivity"] == []  # these are of time


def test_the_least_memory_is_that_of_every_plan(capsys: pytest.CaptureFixture[str]) -> None:
    document = asked(capsys, "--objective", "memory", "--micro-batch", "1")
    model = load_model("llama-3-8b").with_changes(layers=4)
    given = {"global_batch": 16, "seq_len": 2048, "tp": 2, "pp": 1, "cp": 1, "recompute": "none", "micro_batch": 1}
    space = Space(model, parse_cluster("h100-sxm:8"), given)
    least = min(
        memory_bytes(laid_out(structure.model, structure.cluster, structure.user_plan.with_fields(saving)))
        for structure in structures(space)
        for saving in savings(space, structure)
    )
    found = document["plans"][0]["peak_memory_bytes"]
    assert found * (1.0 - document["gap"]) <= least <= found <= least / 0.99
    assert found < asked(capsys, "--micro-batch", "1", "--top", "1")["plans"][0]["peak_memory_bytes"]
    assert "iB more and takes" in document["decides"]


def test_the_rule_of_thumb_cuts_layers_over_eight_gpus_of_a_rack_at_most() -> None:
    given = {"global_batch": 64, "seq_len": 4096}
    thumb = rule_of_thumb(Space(load_model("llama-3-70b"), parse_cluster("gb200-nvl72:64"), given))
    assert thumb is not None
    assert thumb.plan.tp == 8


def test_a_front_counts_no_plan_twice(capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(capsys, "--pareto")["space"] == asked(capsys)["space"]


def test_plans_on_other_numbers_of_gpus_are_compared_in_what_ranks_them(capsys: pytest.CaptureFixture[str]) -> None:
    document = asked(capsys, "--gpus", "4..8")
    assert document["rule_of_thumb"]["n_gpus"] == document["plans"][0]["n_gpus"] == 8
    one = windtunnel.plan("llama-3-8b", "h100-sxm:8", {"global_batch": 16, "seq_len": 2048, "tp": 8}, top=1)[0]
    parts = {name: seconds * 0.6 for name, seconds in one.breakdown_s.items()}
    other = replace(one, n_gpus=16, step_time_s=one.step_time_s * 0.6, breakdown_s=parts)
    assert decides(one, other).startswith("the second (16 GPUs) takes 40.00% less: ")
    assert decides(one, other, "cost").startswith("the second (16 GPUs) takes 20.00% more GPU time: ")


def test_stopped_early_says_what_may_be_missed(capsys: pytest.CaptureFixture[str]) -> None:
    proven, early = asked(capsys, "--top", "1"), asked(capsys, "--top", "1", "--within", "0s")
    best, found = proven["plans"][0]["step_time_s"], early["plans"][0]["step_time_s"]
    assert proven["gap"] == 0.0 <= early["gap"] < 1.0
    assert found * (1.0 - early["gap"]) <= best <= found


def test_choices_are_what_a_search_with_them_finds(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = {"global_batch": 16, "seq_len": 2048, "tp": 2, "pp": 1, "cp": 1, "recompute": "none"}
    model = windtunnel.load_model("llama-3-8b").with_changes(layers=4)
    best = windtunnel.plan(model, "h100-sxm:8", words, choices_within_s=60.0)
    told = {(choice.field, choice.value): choice for choice in best.choices}
    assert ("micro_batch", 1) in told or best[0].plan.get("micro_batch", 1) == 1
    for (name, value), one in told.items():
        again = windtunnel.plan(model, "h100-sxm:8", {**words, name: value}, top=1, choices_within_s=0.0)
        regret = again[0].step_time_s / best[0].step_time_s - 1.0
        assert one.regret == pytest.approx(regret, abs=1e-6) if one.exact else one.regret <= regret + 1e-9
    assert any(one.exact for one in told.values())
    bounded = windtunnel.plan(model, "h100-sxm:8", words, choices_within_s=0.0)
    assert all(choice.regret <= told[choice.field, choice.value].regret + 1e-9 for choice in bounded.choices)
    usual = windtunnel.plan(model, "h100-sxm:8", words)
    assert all(choice.regret <= told[choice.field, choice.value].regret + 1e-9 for choice in usual.choices)
    assert usual.space == bounded.space == best.space  # looking on counts for nothing
    page = tmp_path / "plans.html"
    asked(capsys, "--report", str(page))
    assert "Other choices, with all else chosen again" in page.read_text()


@pytest.mark.parametrize(("tp", "cp", "kinds"), [(1, 8, 2), (2, 4, 2), (2, 8, 1), (8, 2, 1), (16, 2, 1), (8, 1, 1)])
def test_ulysses_exchanges_whole_heads_of_keys_and_values(tp: int, cp: int, kinds: int) -> None:
    found = context_kinds(load_model("llama-3-8b"), FEATURES["megatron"], tp, cp)  # of 32 heads, 8 with keys and values
    assert len(found) == kinds
    assert found[0] == "ring"


def test_what_megatron_asserts_against_is_not_in_the_space() -> None:
    model, cluster = load_model("llama-3-8b"), parse_cluster("h100-sxm:8")
    given = {"global_batch": 16, "seq_len": 2048, "cp": 1, "tp": 1}

    def of(more: dict[str, object]) -> list[tuple[int, int, int | None]]:
        space = Space(model, cluster, {**given, **more})
        return [
            (structure.plan.pp, structure.plan.virtual_stages, saving["zero_stage"])
            for structure in structures(space)
            for saving in savings(space, structure)
        ]

    assert any(pp == 2 and chunks > 1 for pp, chunks, _ in of({}))
    blocking = of({"overlap_p2p": False})
    assert not any(pp == 2 and chunks > 1 for pp, chunks, _ in blocking)
    assert any(pp == 4 and chunks > 1 for pp, chunks, _ in blocking)
    assert {zero for *_, zero in of({})} == {0, 1, 2, 3}
    assert {zero for *_, zero in of({"optimizer": "muon"})} == {0, 1}


@pytest.mark.parametrize(("memory", "told"), [("256 GiB", True), ("64 GiB", False)])
def test_a_remedy_puts_on_the_host_only_what_it_holds(memory: str, told: bool) -> None:
    # 8 B parameters have 96 GB of optimizer state.
    cluster = {"gpu": "a100-40gb-sxm", "gpus": 1, "gpus_per_node": 8, "host": {"memory": memory}}
    plan = windtunnel.plan("llama-3.1-8b", cluster, global_batch=1, seq_len=512, zero_stage=0)
    assert plan.status == "infeasible"
    assert any(remedy.change == "offload_optimizer 1" for remedy in plan.remedies) == told


def test_a_search_that_counts_its_nodes_knows_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remedies are found so: on a busy machine they were other plans."""
    model, cluster = load_model("llama-3-70b"), parse_cluster("h100-sxm:64")
    space = Space(model, cluster, {"global_batch": 64, "seq_len": 4096})

    def run(within_s: float) -> tuple[list[object], object]:
        answer = Search(space, Bounds(straggling(cluster)), counts_nodes=True).run(1, within_s)
        return [found.layout.user_plan for found in answer.plans], answer.counts

    short = run(0.5)
    hours = itertools.count(0.0, 3600.0)
    monkeypatch.setattr("windtunnel.studies.planning.search.best_first.monotonic", lambda: next(hours))
    assert run(0.5) == short
    assert run(1.0)[1] != short[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"top": 0}, "top = 0"),
        ({"top": 2.5}, "top = 2.5"),
        ({"within_s": math.nan}, "within_s = nan"),
        ({"within_s": -1}, "within_s = -1"),
        ({"choices_within_s": "soon"}, "choices_within_s = 'soon'"),
        ({"gpus": 4}, "gpus = 4: give the least and the most"),
        ({"gpus": "2..4"}, "gpus = '2..4': give the least and the most"),
        ({"gpus": (4, 2)}, "gpus = '4..2': give the least and the most"),
        ({"gpus": (0, 2)}, "gpus = 0"),
        ({"price_per_gpu_hour": -1.0}, "price_per_gpu_hour = -1"),
        ({"price_per_gpu_hour": math.inf}, "price_per_gpu_hour = inf"),
        ({"mtbf_s": 0}, "mtbf = 0"),
        ({"mtbf_s": math.nan}, "mtbf_s = nan"),
        ({"mtbf_s": math.inf}, "mtbf_s = inf"),
        ({"mtbf_s": "often"}, "mtbf_s = 'often'"),
    ],
)
def test_what_cannot_be_meant_is_one_message(words: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        windtunnel.plan("llama-3-8b", "h100-sxm:8", global_batch=8, seq_len=512, **words)


def test_times_are_taken_with_a_unit_too() -> None:
    words = {"global_batch": 8, "seq_len": 512, "tp": 8, "micro_batch": 8, "zero_stage": 1, "recompute": "none"}
    plan = windtunnel.plan("llama-3.2-1b", "h100-sxm:8", words, within_s="30 s", mtbf_s="6 h", slow="gpu=3:1.3")
    other = windtunnel.plan("llama-3.2-1b", "h100-sxm:8", words, within_s=30, mtbf_s=21600.0, slow=["gpu=3:1.3"])
    assert plan.plans == other.plans


def test_a_plan_is_a_mapping_or_a_file_as_for_predict(tmp_path: Path) -> None:
    words = {"global_batch": 8, "seq_len": 512, "tp": 8, "micro_batch": 8, "zero_stage": 1, "recompute": "none"}
    file = tmp_path / "plan.yaml"
    file.write_text("".join(f"{name}: {value}\n" for name, value in words.items()))
    found = [windtunnel.plan("llama-3.2-1b", "h100-sxm:8", one).plans for one in (words, file, str(file))]
    assert found[0] == found[1] == found[2]
    with pytest.raises(UserError, match=r"plan = \[1\]: give a mapping"):
        windtunnel.plan("llama-3.2-1b", "h100-sxm:8", [1])  # type: ignore[arg-type]


@pytest.mark.parametrize("words", ["--price nan", "--mtbf 0s", "--gpus ²..8", "--gpus ４..8"])
def test_flags_that_cannot_be_meant_have_status_2(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "llama-3-8b", "--cluster", "h100-sxm:8", *FIXED, *words.split()]) == 2
    assert capsys.readouterr().err.startswith("windtunnel: error: ")


def test_the_time_that_reading_the_question_took_is_none_of_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windtunnel.studies.plan.monotonic", lambda: monotonic() + 700.0)
    given: list[float] = []

    def found(*_: object, within_s: float, **__: object) -> None:
        given.append(within_s)
        raise UserError("enough")

    monkeypatch.setattr("windtunnel.studies.planning.plan.plan", found)
    for words in ("--within 1000s", "--within 500s"):
        assert main(["plan", "llama-3-8b", "--cluster", "h100-sxm:8", *FIXED, *words.split()]) == 2
    assert 0.0 < given[0] <= 300.0
    assert given[1] == 0.0


def test_fields_of_a_plan_are_said_in_words() -> None:
    names = ("zero_stage", "cuda_graphs", "micro_batch", "micro_batch_group", "tp", "overlap_tp")
    said = ["ZeRO", "CUDA graphs", "micro-batch", "micro-batch group", "tp", "overlap tp"]
    assert [field_words(name) for name in names] == said
