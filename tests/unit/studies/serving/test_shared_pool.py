"""A pool of models: one model alone is `serve`, nothing is lost with a machine, replicas come after their start-up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.errors import UserError
from windtunnel.faces.cli import main
from windtunnel.faces.report.draw.page import page_of
from windtunnel.faces.report.serving.views import pool_document
from windtunnel.questions import read
from windtunnel.questions.asked.serve.study import Serve
from windtunnel.studies.serving.replica.sequence import NEVER
from windtunnel.studies.serving.result import ServingResult
from windtunnel.studies.serving.shared_pool.loop import SharedPool
from windtunnel.studies.serving.shared_pool.result import run_pool
from windtunnel.studies.serving.shared_pool.scaling import Scaler
from windtunnel.studies.serving.shared_pool.spec import Pool, Scaling, read_pool
from windtunnel.studies.serving.study import answer

LOAD = {"prompt": 400, "output": 60, "rate": 20, "requests": 200}


def _document() -> dict[str, Any]:
    return {
        "groups": {
            "reserved": {"cluster": "h100-sxm:2", "gpu_hour": 3.0},
            "spot": {"cluster": "h100-sxm:4", "gpu_hour": 1.0, "gpus": [["0s", 4], ["3s", 1], ["6s", 4]]},
        },
        "models": {
            "chat": {"model": "llama-3.1-8b", "groups": ["spot", "reserved"], "replicas": 3, "startup": "2s",
                     "slo": "ttft=1s", "workload": LOAD},
            "code": {"model": "llama-3.1-8b", "groups": ["reserved", "spot"], "startup": "1s",
                     "autoscale": {"least": 1, "most": 3, "target": 4, "every": "500ms", "idle": "2s"},
                     "workload": {**LOAD, "seed": 1, "cv": 3}},
        },
    }  # fmt: skip


def _pool(folder: Path, document: dict[str, Any]) -> Pool:
    path = folder / "pool.yaml"
    path.write_text(yaml.safe_dump(document))
    return read_pool(path)


def test_requests_that_no_replica_can_hold_are_said_with_the_reason(tmp_path: Path) -> None:
    one = {"model": "llama-3.1-8b", "num_gpu_blocks": 5, "workload": {**LOAD, "requests": 3}}
    found = run_pool(_pool(tmp_path, {"groups": {"all": {"cluster": "h100-sxm:1"}}, "models": {"one": one}}))
    assert found.total.refused == 3
    assert found.warnings == [
        "one: 3 of 3 requests are refused: 400 + 60 tokens exceed the 80 that fit in the KV cache"
    ]


def test_replicas_that_never_find_room_are_said(tmp_path: Path) -> None:
    one = {"model": "llama-3.1-8b", "replicas": 3, "workload": {**LOAD, "requests": 3}}
    for gpus, told in ((3, []), (2, ["one: 3 replicas are asked for, and its groups never have room for more than 2"])):
        groups = {"all": {"cluster": f"h100-sxm:{gpus}"}}
        assert run_pool(_pool(tmp_path, {"groups": groups, "models": {"one": one}})).warnings == told


def _plain(cluster: str, **parts: Any) -> ServingResult:
    """What `serve` says of the same requests."""
    asked = {"requests": {"prompt": 400, "output": 60, "requests": 200}, "load": {"rate": 20.0}}
    question: Serve = read({"question": "serve", "model": "llama-3.1-8b", "cluster": cluster, **asked, **parts})
    return answer(question).result


def test_one_model_on_one_group_is_what_serve_says(tmp_path: Path) -> None:
    document = {
        "groups": {"all": {"cluster": "h100-sxm:2"}},
        "models": {"one": {"model": "llama-3.1-8b", "replicas": 2, "slo": "ttft=100ms,tpot=8ms", "workload": LOAD}},
    }
    pooled = run_pool(_pool(tmp_path, document)).models["one"].result
    plain = _plain("h100-sxm:2", replicas={"replicas": 2}, limits={"ttft": "100ms", "tpot": "8ms"})
    assert pooled.to_dict()["ttft_s"] == plain.to_dict()["ttft_s"]
    assert pooled.to_dict()["itl_s"] == plain.to_dict()["itl_s"]
    assert pooled.slo_attainment == plain.slo_attainment
    assert pooled.preemptions == plain.preemptions


def test_pools_of_prefill_and_decode_in_a_pool_are_what_serve_says(tmp_path: Path) -> None:
    served = {"model": "llama-3.1-8b", "prefill": "2xtp1", "decode": "1xtp2", "workload": LOAD}
    document = {"groups": {"all": {"cluster": "h100-sxm:4", "gpu_hour": 2.0}}, "models": {"one": served}}
    pooled = run_pool(_pool(tmp_path, document)).models["one"].result
    plain = _plain("h100-sxm:4", replicas={"prefill": "2xtp1", "decode": "1xtp2"})
    for key in ("ttft_s", "itl_s", "e2e_s", "tpot_s"):
        assert pooled.to_dict()[key] == plain.to_dict()[key]
    assert pooled.gpus == plain.gpus == 4
    assert pooled.spec.prefill == plain.spec.prefill


def test_machines_of_pools_that_go_lose_no_request(tmp_path: Path) -> None:
    served = {"model": "llama-3.1-8b", "prefill": "1xtp1", "decode": "1xtp1", "replicas": 2, "startup": "1s",
              "workload": LOAD}  # fmt: skip
    spot = {"cluster": "h100-sxm:4", "gpus": [["0s", 4], ["3s", 2], ["6s", 4]]}
    found = run_pool(_pool(tmp_path, {"groups": {"spot": spot}, "models": {"one": served}}))
    one = found.models["one"]
    assert one.replicas_lost == 1
    assert one.requests_moved > 0
    assert one.result.finished == 200


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"prefill": "1xtp1"}, "models.one.decode"),
        ({"prefill": "1xtp1", "decode": "1xtp1", "tp": 2}, "leave it out"),
        ({"prefill": "4xtp1", "decode": "1xtp1"}, "GPUs are more"),
        ({"prefill": "1xtp1", "decode": "1xtp1", "router": "prefix-aware"}, "least-loaded"),
    ],
)
def test_pools_that_cannot_be_are_refused(tmp_path: Path, more: dict[str, Any], words: str) -> None:
    document = {
        "groups": {"all": {"cluster": "h100-sxm:4"}},
        "models": {"one": {"model": "llama-3.1-8b", "workload": LOAD, **more}},
    }
    with pytest.raises(UserError, match=words):
        _pool(tmp_path, document)


def test_a_pool_that_is_not_there_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_pool(tmp_path / "nofile.yaml")


@pytest.mark.parametrize("notice", ["0s", "1s"])
def test_machines_come_and_go_and_every_request_ends_once(tmp_path: Path, notice: str) -> None:
    document = _document()
    document["groups"]["spot"]["notice"] = notice
    pool = _pool(tmp_path, document)
    loop = SharedPool(pool)
    runs = loop.run()
    for served, run in zip(pool.models, runs, strict=True):
        assert [one.index for one in sorted(run.sent, key=lambda one: one.index)] == list(range(200))
        assert all(one.arrival_ns <= one.first_ns <= one.last_ns for one in run.sent)
        assert all(one.generated == one.output for one in run.sent)
        for one in run.instances:
            assert one.replica.pool.held == 0 or one.gone_ns < NEVER
            busy_ns = one.replica.tally.busy_ticks / 1024
            assert busy_ns <= max(0, one.gone_ns - one.ready_ns)
            if one.born_ns > 0:
                assert one.ready_ns == one.born_ns + served.startup_ns
    for name, group in pool.groups.items():
        for at_ns in range(0, loop.now_ns, 100_000_000):
            here = [one for run in runs for one in run.instances if one.group == name]
            used = sum(one.engine.deployment.gpus for one in here if one.born_ns <= at_ns < one.gone_ns)
            assert used <= [gpus for since, gpus in group.gpus if since <= at_ns][-1]
    lost = runs[0].lost_replicas + runs[1].lost_replicas
    assert (lost > 0) == (notice == "0s")  # a second is enough to finish what there is
    assert (runs[0].moved + runs[1].moved > 0) == (notice == "0s")
    assert max(up for _, up, _ in runs[1].counts) > 1  # it scaled


def test_totals_are_the_sum_of_the_models_and_pay_for_start_up(tmp_path: Path) -> None:
    found = run_pool(_pool(tmp_path, _document())).to_dict()
    total, models = found["total"], found["models"].values()
    assert total["finished"] == sum(one["finished"] for one in models) == 400
    assert total["gpu_seconds"] == pytest.approx(sum(one["gpu_seconds"] for one in found["groups"].values()))
    assert total["cost"] == pytest.approx(sum(one["cost"] for one in found["groups"].values()))
    assert total["requests_moved"] > 0
    page = page_of(pool_document(found, "pool.yaml"))
    assert "http://" not in page
    assert page.count('<path class="line') == 4


def test_where_no_machine_is_left_the_rest_is_told_as_unfinished(tmp_path: Path) -> None:
    document = _document()
    document["groups"] = {"spot": {"cluster": "h100-sxm:4", "gpus": [["0s", 4], ["2s", 0]]}}
    for one in document["models"].values():
        one["groups"] = ["spot"]
    found = run_pool(_pool(tmp_path, document)).to_dict()
    assert found["total"]["unfinished"] > 0
    assert found["total"]["finished"] + found["total"]["unfinished"] == 400


def test_a_machine_that_another_model_gives_back_is_waited_for(tmp_path: Path) -> None:
    load = {"prompt": 100, "output": 10, "rate": 20, "requests": 2}
    scale = {"least": 0, "most": 1, "target": 4, "every": "10s", "idle": "60s"}
    model = {"model": "llama-3.1-8b", "startup": "1s", "autoscale": scale, "workload": load}
    found = run_pool(_pool(tmp_path, {"groups": {"g": {"cluster": "h100-sxm:1"}}, "models": {"a": model, "b": model}}))
    assert found.models["a"].result.finished == found.models["b"].result.finished == 2
    model["autoscale"] = {**scale, "least": 1}  # never given back
    rest = run_pool(_pool(tmp_path, {"groups": {"g": {"cluster": "h100-sxm:1"}}, "models": {"a": model, "b": model}}))
    assert (rest.models["a"].result.finished, rest.models["b"].result.finished) == (2, 0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 200), min_size=1, max_size=60), st.integers(0, 3), st.integers(0, 8))
def test_a_scaler_stays_in_its_bounds_and_waits_before_it_shrinks(loads: list[int], least: int, more: int) -> None:
    rules = Scaling(least, max(1, least + more), 10.0, 10, 35)
    scaler, before = Scaler(rules), least
    wants = []
    for place, load in enumerate(loads):
        wanted = scaler.look(place * 10, load)
        now = min(rules.most, max(least, -(-load // 10)))
        wants.append(now)
        assert least <= wanted <= rules.most
        assert wanted >= now
        assert wanted == max(wants[-4:])
        before = wanted
    assert before >= least


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(more=1), "pool.more"),
        (lambda d: d["models"]["chat"].update(tpp=2), "models.chat.tpp"),
        (lambda d: d["models"]["chat"].update(groups=["none"]), "models.chat.groups"),
        (lambda d: d["models"]["chat"].pop("startup"), "models.chat.startup"),
        (lambda d: d["models"]["chat"].pop("workload"), "models.chat.workload"),
        (lambda d: d["models"]["code"].update(replicas=2), "models.code.replicas"),
        (lambda d: d["models"]["code"]["autoscale"].update(target=0), "models.code.autoscale"),
        (lambda d: d["models"]["chat"].update(router="random"), "models.chat.router"),
        (lambda d: d["models"]["chat"].update(model="llama-3.1-405b"), "models.chat"),
        (lambda d: d["groups"]["spot"].update(gpus=[["1s", 4]]), "groups.spot.gpus"),
        (lambda d: d["groups"]["spot"].update(gpus=[["0s", 9]]), "groups.spot.gpus"),
        (lambda d: d["groups"]["spot"].update(cluster="nothing:4"), "nothing"),
        (lambda d: d.update(groups=[]), "groups"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, change: Any, words: str) -> None:
    document = _document()
    change(document)
    with pytest.raises(UserError) as caught:
        _pool(tmp_path, document)
    assert words in str(caught.value)


def test_the_verb_answers_a_pool(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, page = tmp_path / "pool.yaml", tmp_path / "page.html"
    path.write_text(yaml.safe_dump(_document()))
    assert main(["serve", "pool", str(path), "--json", "--report", str(page)]) == 0
    first = capsys.readouterr().out
    assert set(json.loads(first)["models"]) == {"chat", "code"}
    assert "Replicas over time" in page.read_text()
    assert main(["serve", "pool", str(path), "--json"]) == 0
    assert capsys.readouterr().out == first
    assert main(["serve", "pool", str(path)]) == 0
    assert "went on elsewhere" in capsys.readouterr().out
    assert main(["serve", "pool", str(tmp_path / "none.yaml")]) == 2
