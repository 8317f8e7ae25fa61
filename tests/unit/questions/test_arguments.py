"""Arguments of public functions: what cannot be meant is one error that names field, value and remedy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import windtunnel
from windtunnel.errors import SpecError, UnknownNameError, UserError
from windtunnel.questions import read
from windtunnel.questions.typed import check, texts

MODEL, CLUSTER = "llama-3-8b", "h100-sxm:8"
PLAN = {"tp": 8, "global_batch": 8, "seq_len": 512}
REQUESTS = windtunnel.Workload([100, 50], [10, 20], concurrency=2)


@pytest.mark.parametrize(
    ("value", "kind", "wanted"),
    [
        (3, int, ""),
        (np.int64(3), int, ""),
        (np.float32(0.5), float, ""),
        (np.bool_(True), bool, ""),
        (None, int | None, ""),
        (Path("x"), str | PathLike, ""),
        (["a", "b"], Sequence[str], ""),
        ("3", int, "a whole number"),
        (True, int, "a whole number"),
        (True, float, "a number"),
        ("x", float | None, "a number"),
        (5, str | PathLike | None, "text or a path"),
        ([5], Sequence[str], "a list of texts"),
        ("a", Sequence[str], "a list of texts"),
        ("c", Literal["a", "b"], "a or b"),
        (5, Mapping | None, "a mapping"),
        (5, str | windtunnel.Workload, "text or a Workload"),
    ],
)
def test_a_value_is_held_against_its_type(value: object, kind: Any, wanted: str) -> None:
    if not wanted:
        check({"field": value}, field=kind)
        return
    with pytest.raises(SpecError) as refused:
        check({"field": value}, field=kind)
    assert (refused.value.field, refused.value.remedy) == ("field", f"give {wanted}")


def test_a_text_alone_is_a_list_of_one() -> None:
    assert texts("words", "a") == ("a",)
    assert texts("words", ["a", "b"]) == ("a", "b")
    with pytest.raises(SpecError, match="a list of texts"):
        texts("words", 5)  # type: ignore[arg-type]


def survive(**asked: Any) -> Any:
    return windtunnel.survive(None, "h100-sxm:64", **{"seeds": 3, "days": 2.0, **asked})


def serve(**asked: Any) -> Any:
    return windtunnel.serve(MODEL, "h100-sxm:1", **{"deployment": {}, "workload": REQUESTS, **asked})


def plan(**asked: Any) -> Any:
    return windtunnel.plan(MODEL, CLUSTER, global_batch=8, seq_len=512, **asked)


@pytest.mark.parametrize(
    ("field", "asked"),
    [
        ("slow", lambda: plan(slow=3)),
        ("techniques", lambda: plan(techniques=5)),
        ("techniques", lambda: plan(techniques=[5])),
        ("slow", lambda: windtunnel.predict(MODEL, CLUSTER, PLAN, slow=3)),
        ("lengths", lambda: windtunnel.predict(MODEL, CLUSTER, PLAN, lengths=5)),
        ("scenario", lambda: windtunnel.predict(MODEL, CLUSTER, PLAN, scenario={})),
        ("techniques", lambda: windtunnel.predict_with(MODEL, CLUSTER, PLAN, 5)),
        ("policies", lambda: survive(policies=5)),
        ("days", lambda: survive(days="5")),
        ("seeds", lambda: survive(seeds=2.5)),
        ("gpu_hour", lambda: survive(gpu_hour="2")),
        ("tp", lambda: survive(plan={"tp": "x"})),
        ("tp", lambda: survive(plan={"tp": -1})),
        ("replicas", lambda: serve(replicas=0)),
        ("replicas", lambda: serve(replicas="a")),
        ("workload", lambda: serve(workload=5)),
        ("deployment", lambda: serve(deployment=5)),
        ("ttft_s", lambda: serve(slo={"ttft_s": "1s"})),
        ("cost_per_gpu_hour", lambda: serve(cost_per_gpu_hour=-1)),
        ("input_tokens", lambda: windtunnel.Workload(5, 5)),
        ("input_tokens", lambda: windtunnel.Workload(["a"], [1], concurrency=1)),
        ("concurrency", lambda: windtunnel.Workload([1], [1], concurrency="a")),
        ("where", lambda: windtunnel.fleet("x.csv", "gpu:8", where=5)),
        ("seed", lambda: windtunnel.fleet("x.csv", "gpu:8", seed="a")),
        ("study", lambda: windtunnel.sweep(5)),
        ("jobs", lambda: windtunnel.sweep({}, jobs="a")),
        ("traces", lambda: windtunnel.explain(5)),
        ("result", lambda: windtunnel.whatif(5)),
        ("result", lambda: windtunnel.save_result(5)),
        ("answer", lambda: windtunnel.notebook_html(5)),
        ("budget_s", lambda: windtunnel.calibrate("x.yaml", budget_s="a")),
        ("table", lambda: windtunnel.run_validation(5)),
    ],
)
def test_public_functions_name_the_field(field: str, asked: Callable[[], Any]) -> None:
    with pytest.raises(SpecError) as refused:
        asked()
    assert refused.value.field == field


@pytest.mark.parametrize(
    "asked",
    [
        lambda: survive(foo=5),
        lambda: serve(deployment={"foo": 1}),
        lambda: serve(slo={"ttft": 1.0}),
    ],
)
def test_unknown_names_are_told_what_there_is(asked: Callable[[], Any]) -> None:
    with pytest.raises(UnknownNameError):
        asked()


def test_survive_takes_a_text_of_policies_and_a_step_time() -> None:
    answer = survive(policies="restart, standby", step_time="5s")
    assert [entry.policy for entry in answer.entries] == ["restart", "standby"]
    assert answer.asked.step_s == 5.0
    with pytest.raises(UserError, match="step_time"):
        windtunnel.survive(MODEL, CLUSTER, PLAN, step_time="5s")


def test_a_workload_of_lists_is_one_of_arrays() -> None:
    arrays = windtunnel.Workload(np.array([100, 50]), np.array([10, 20]), concurrency=2)
    for name in ("input_tokens", "output_tokens"):
        np.testing.assert_array_equal(getattr(REQUESTS, name), getattr(arrays, name))
    assert REQUESTS.concurrency == arrays.concurrency
    assert REQUESTS.input_tokens.dtype == np.int64


@pytest.mark.parametrize(
    ("question", "part", "meant"),
    [("serve", {"load": {"rate": 3, "prompt": 9}}, "requests.prompt"), ("predict", {"cluster": {"tp": 8}}, "plan.tp")],
)
def test_a_field_in_another_part_is_told_its_own(question: str, part: dict[str, object], meant: str) -> None:
    asked = {"question": question, "model": "llama-3-8b", "cluster": "h100-sxm:8", **part}
    with pytest.raises(SpecError, match=f"did you mean {meant}"):
        read(asked)
