"""Clusters side by side: each figure is the one that its verb gives, and what the bands do not tell apart is said."""

from __future__ import annotations

import json

import pytest

from windtunnel.errors import UserError
from windtunnel.questions import ask
from windtunnel.questions.words import from_flags
from windtunnel.studies.decide import Decision

PLAN = {"tp": 2, "pp": 1, "cp": 1, "micro_batch": 1, "global_batch": 64, "seq_len": 4096, "recompute": "none"}
ASKED = {
    "question": "decide",
    "models": ["llama-3-8b"],
    "clusters": "h100-sxm:16,b200:16",
    "tokens": "200B",
    "plan": PLAN,
    "price": "h100-sxm=2.5,b200=4",
    "mtbf": "6h",
    "within": 1,
    "seeds": 20,
}


@pytest.fixture(scope="module")
def decision() -> Decision:
    found = ask(ASKED)
    assert isinstance(found, Decision)
    return found


def asked_again(line: str) -> object:
    """The answer to a line that a row names."""
    import shlex

    _, verb, model, *words = shlex.split(line)
    flags = {}
    while words:
        name, value = words.pop(0).removeprefix("--"), words.pop(0)
        flags[name] = value == "true" if value in ("true", "false") else value
    return ask({"question": verb, **json.loads(json.dumps(_plain(verb, {"model": model, **flags})))})


def _plain(verb: str, flags: dict[str, object]) -> dict[str, object]:
    from windtunnel.questions import plain

    return {name: value for name, value in plain(from_flags(verb, flags)).items() if name != "question"}


def test_each_figure_is_that_of_the_verb_beside_it(decision: Decision) -> None:
    for one in decision.options:
        result, survival = asked_again(one.predict), asked_again(one.survive)
        assert one.step_time_s == result.step_time_s  # type: ignore[attr-defined]
        assert one.mfu == result.mfu  # type: ignore[attr-defined]
        assert one.tokens_per_s == result.tokens_per_s  # type: ignore[attr-defined]
        best = max(survival.entries, key=lambda entry: entry.ettr)  # type: ignore[attr-defined]
        assert (one.effective_share, one.policy) == (best.ettr, best.policy)
        assert one.days == pytest.approx(survival.asked.days)  # type: ignore[attr-defined]
        bare = 2e11 / result.tokens_per_s / 86_400  # type: ignore[attr-defined]
        assert one.days * best.ettr == pytest.approx(bare, rel=5e-3)  # type: ignore[operator]
        assert one.days_without_failures < one.days  # type: ignore[operator]
        assert (one.cost, one.gpu_hours) == pytest.approx((best.cost_usd, best.gpu_hours))
        assert one.standbys == best.standbys
        assert one.gpu_hours == pytest.approx(one.days * 24 * (16 + 8 * one.standbys))  # type: ignore[operator]
        assert one.cost == pytest.approx(one.gpu_hours * one.price)  # type: ignore[operator]
        assert one.head_room_bytes == result.memory_capacity_bytes - result.peak_memory.device_bytes  # type: ignore[attr-defined]


def test_at_the_break_even_price_it_costs_what_the_other_does(decision: Decision) -> None:
    first, second = decision.options
    assert first.cost <= second.cost  # type: ignore[operator]
    assert first.break_even_price * first.gpu_hours == pytest.approx(second.cost)  # type: ignore[operator]
    assert second.break_even_price * second.gpu_hours == pytest.approx(first.cost)  # type: ignore[operator]


def test_what_bands_do_not_tell_apart_is_said(decision: Decision) -> None:
    first, second = decision.options
    overlap = second.cost_p5 <= first.cost_p95  # type: ignore[operator]
    assert second.told_apart is not overlap
    assert ("not told apart" in decision.sentence) is overlap
    same = ask({**ASKED, "clusters": "h100-sxm:16,h100-sxm:16", "price": ""})
    assert not same.options[1].told_apart
    assert same.by == "days"
    assert same.options[0].cost is None
    json.dumps(decision.to_dict(), allow_nan=False)


def test_the_text_names_policy_standbys_and_plan(decision: Decision) -> None:
    from windtunnel.faces.report.decision import decide_document
    from windtunnel.views import Table

    first = decision.options[0]
    assert f"met by {first.policy}" in decision.sentence
    assert ("machine" in decision.sentence) is bool(first.standbys)
    table = next(view for view in decide_document(decision).views if isinstance(view, Table))
    cells = dict(zip([column.name for column in table.columns], table.rows[0], strict=True))
    assert "tp 2" in str(cells["plan"])
    assert first.policy in str(cells["failures met by"])


def test_bands_of_money_follow_from_those_of_days_and_both_are_said() -> None:
    found = ask({**ASKED, "clusters": "h100:16,mi355x:16", "price": "2,9"})
    one, other = found.options
    for each in (one, other):
        low, high = each.cost_p5 / each.cost, each.cost_p95 / each.cost
        assert (low, high) == pytest.approx((each.days_p5 / each.days, each.days_p95 / each.days))
    assert (one.cluster, other.told_apart, other.days_told_apart) == ("h100:16", True, False)
    assert "by days they are not told apart" in found.sentence
    assert "100% of the busy time of llama-3-8b on mi355x:16 is priced by roofline" in found.sentence


def test_prices_by_place_by_name_and_by_alias() -> None:
    from windtunnel.physics.hardware import parse_cluster
    from windtunnel.studies.decide import _prices

    words = ["h100-sxm:16", "b200:16"]
    clusters = [parse_cluster(word) for word in words]
    for text, prices in {
        "": [None, None],
        "2.5": [2.5, 2.5],
        "2.5,4": [2.5, 4.0],
        "h100=2.5,b200:16=4": [2.5, 4.0],
        "2.5,b200=4": [2.5, 4.0],
    }.items():
        assert _prices(text, clusters, words) == prices
    for wrong in ("2.5,4,5", "2.5,4,b200=4", "a100=2", "-1"):
        with pytest.raises(UserError, match="--price"):
            _prices(wrong, clusters, words)
    words = ["2 x a3-megagpu-8g", "p5.48xlarge:16"]
    assert _prices("a3-megagpu-8g=3,p5.48xlarge=4", [parse_cluster(word) for word in words], words) == [3.0, 4.0]


def test_a_cluster_behind_a_space_is_no_model_that_does_not_fit() -> None:
    with pytest.raises(UserError, match="join them by commas, --clusters h100-sxm:16,b200:16"):
        ask({**ASKED, "models": ["llama-3-8b", "b200:16"], "clusters": "h100-sxm:16"})
    with pytest.raises(UserError, match="llama-3-9b"):
        ask({**ASKED, "models": ["llama-3-9b"]})


def test_failures_of_a_larger_job_come_in_proportion() -> None:
    from windtunnel.studies.survive import _process

    process = _process("6h@512", None, None)  # type: ignore[arg-type]
    assert process.mttf_s(512, 8) == pytest.approx(6 * 3600)
    assert process.mttf_s(1024, 8) == pytest.approx(3 * 3600)


def test_survive_takes_the_mtbf_that_decide_takes() -> None:
    from windtunnel.questions import read
    from windtunnel.studies.survive import job_of

    def process(**words: object) -> object:
        return job_of(read({"question": "survive", "cluster": "h100-sxm:64", **words}))[1].process

    assert process(mtbf="6h") == process(failures="6h@64")
    assert "6.00 h" in process(mtbf="6h").name  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"6h@64, or --mtbf 6h"):
        process(failures="6h")
    with pytest.raises(UserError, match="not both"):
        process(failures="rsc-1", mtbf="6h")


def test_a_model_that_fits_nowhere_has_its_reason() -> None:
    found = ask({**ASKED, "models": ["llama-3.1-405b"], "clusters": "h100-sxm:8", "price": ""})
    assert not found.options[0].fits
    assert found.options[0].reason
    assert "None of them" in found.sentence


@pytest.mark.parametrize(
    "wrong", [{"price": "a100=2"}, {"price": "x"}, {"clusters": ","}, {"models": []}, {"mtbf": "0s"}]
)
def test_what_cannot_be_asked(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError):
        ask({**ASKED, **wrong})


def test_a_batch_that_nobody_gave_is_shared_out_over_all_gpus_of_each_cluster() -> None:
    open_batch = {name: size for name, size in PLAN.items() if name != "global_batch"}
    found = ask({**ASKED, "clusters": "h100-sxm:16,h100-sxm:24", "price": "", "plan": open_batch})
    assert any("1,008 sequences a step, 4.1M tokens" in note for note in found.notes)
    assert not any("cannot be shared out" in note for note in found.notes)


def test_a_batch_that_a_cluster_cannot_share_out_is_named() -> None:
    found = ask({**ASKED, "clusters": "h100-sxm:16,h100-sxm:24", "price": "", "plan": {**PLAN, "tp": 1}})
    assert [note for note in found.notes if "cannot be shared out" in note] == [
        "64 sequences a step cannot be shared out over the 3 of h100-sxm:24's GPUs, which layers or heads must be then:"
        " give a multiple of 3, or fewer GPUs"
    ]


def test_the_search_s_time_is_no_deadline_of_the_training() -> None:
    with pytest.raises(UserError, match="within = '30d': is how long the search for a plan may take"):
        ask({**ASKED, "within": "30d"})
