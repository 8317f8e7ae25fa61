"""The local page, asked over HTTP: what it shows, whom it refuses, and that it says what the command line says."""

from __future__ import annotations

import html
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")

from starlette.testclient import TestClient

from windtunnel.errors import SpecError
from windtunnel.faces.report.run_list import RunList
from windtunnel.faces.ui.form import asked_of, field_for, file_or_name, plan_fields, plan_of
from windtunnel.faces.ui.jobs import JobList
from windtunnel.faces.ui.server import FORM_BYTES_MOST, application
from windtunnel.faces.ui.swept import journalled, tabled
from windtunnel.questions.asked.parts.scenario import Scenario

HERE = "127.0.0.1:8765"
SAME = {"origin": f"http://{HERE}"}
QUESTION = {"model": "llama-3.2-1b", "gpu": "h100-sxm", "gpus": "8", "global_batch": "16", "seq_len": "1024"}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with TestClient(application(tmp_path / "runs", frozenset({HERE})), base_url=f"http://{HERE}") as found:
        yield found


def kept(client: TestClient, **changes: str) -> str:
    answer = client.post("/keep", data={**QUESTION, **changes}, headers=SAME | {"hx-request": "true"})
    assert answer.status_code == 200, answer.text
    return answer.text.partition("/runs/")[2][:12]


def test_an_answer_is_the_report_and_a_mistake_is_beside_its_field(client: TestClient) -> None:
    answer = client.get("/answer", params=QUESTION)
    assert "Where the step goes" in answer.text
    assert "--cluster h100-sxm:8" in answer.text
    wrong = client.get("/answer", params={**QUESTION, "tp": "3"})
    assert 'data-field="tp"' in wrong.text
    assert "does not divide" in wrong.text
    mistakes = ("micro_batch", "x"), ("model", "no-such"), ("gpus", "many"), ("gpus", "0"), ("overlap_tp", "maybe")
    for name, value in mistakes:
        assert f'data-field="{name}"' in client.get("/answer", params={**QUESTION, name: value}).text


def test_the_page_the_command_line_and_python_keep_the_same_bytes(client: TestClient, tmp_path: Path) -> None:
    import windtunnel
    from windtunnel.faces.cli import main

    name = kept(client, tp="2", slow="gpu=3:1.25", recompute="full")
    folder = tmp_path / "runs" / name
    words = "--cluster h100-sxm:8 --global-batch 16 --seq 1024 --tp 2 --recompute full --slow gpu=3:1.25"
    assert main(["predict", "llama-3.2-1b", *words.split(), "--out", str(tmp_path / "cli"), "--json"]) == 0
    plan = {"global_batch": 16, "seq_len": 1024, "tp": 2, "recompute": "full"}
    result = windtunnel.predict("llama-3.2-1b", "h100-sxm:8", plan, slow=["gpu=3:1.25"])
    windtunnel.save_result(result, tmp_path / "python")
    for other in ("cli", "python"):
        for file in ("result.json", "spec.yaml"):
            assert (tmp_path / other / name / file).read_bytes() == (folder / file).read_bytes()


def test_every_field_of_a_plan_is_in_the_form_and_read_back(client: TestClient) -> None:
    page = client.get("/").text
    for name in plan_fields():
        assert f'name="{name}"' in page
    given = {"tp": "4", "layers_per_stage": "7,8", "overlap_tp": "off", "offload_optimizer": "0.5", "schedule": "1f1b"}
    assert plan_of(given) == {
        "tp": 4, "layers_per_stage": [7, 8], "overlap_tp": False, "offload_optimizer": 0.5, "schedule": "1f1b",
    }  # fmt: skip


def test_one_field_over_its_values_holds_the_band_and_says_what_cannot_be(client: TestClient) -> None:
    for price in ("nan", "inf", "-1", "much"):
        text = client.get("/points", params={**QUESTION, "vary": "tp", "price": price}).text
        assert "give a number of dollars per GPU-hour" in text
        assert "<table" not in text
    text = client.get("/points", params={**QUESTION, "vary": "tp", "price": "3"}).text
    assert text.count("<tr") == 8
    assert "p5–p95" in text
    assert "does not divide" in text  # tp 16 on 8 GPUs
    assert 'class="mistake"' in client.get("/points", params={**QUESTION, "vary": "colour"}).text


@pytest.mark.parametrize("host", ["evil.example:8765", "127.0.0.1", "localhost:1", ""])
def test_another_name_for_this_machine_is_refused(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"host": host}).status_code == 421


def test_another_site_may_change_nothing(client: TestClient, tmp_path: Path) -> None:
    name = kept(client)
    for headers in ({"origin": "http://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}, {}):
        for address in (f"/runs/delete?run={name}", f"/runs/{name}/tags", "/studies/start", "/uploads?name=x.json"):
            assert client.post(address, headers=headers).status_code == 403
    assert (tmp_path / "runs" / name).is_dir()


def test_elsewhere_than_on_loopback_a_token_opens(tmp_path: Path) -> None:
    with TestClient(application(tmp_path, frozenset({HERE}), token="secret"), base_url=f"http://{HERE}") as client:
        assert client.get("/runs").status_code == 403
        assert client.get("/runs?token=wrong").status_code == 403
        assert client.get("/runs?token=secret").status_code == 200
        assert client.get("/runs").status_code == 200  # by the cookie
        client.cookies.clear()
        assert client.get("/runs").status_code == 403


def test_every_answer_forbids_scripts_that_are_not_ours(client: TestClient) -> None:
    for address in ("/", "/runs", "/studies", "/vary", "/static/page.js", "/none"):
        policy = client.get(address).headers["content-security-policy"]
        assert "script-src 'self';" in policy
        assert "default-src 'none'" in policy


EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


def test_text_of_a_question_or_a_run_is_never_markup(client: TestClient, tmp_path: Path) -> None:
    for name in ("model", "gpu", "tp", "slow", "set", "recompute", "vary"):
        for address in ("/", "/answer", "/vary", "/points"):
            assert "<script>alert" not in client.get(address, params={**QUESTION, name: EVIL}).text
            assert "<img src=x" not in client.get(address, params={**QUESTION, name: EVIL}).text
    name = kept(client)
    client.post(f"/runs/{name}/tags", data={"tags": EVIL}, headers=SAME)
    document = json.loads((tmp_path / "runs" / name / "result.json").read_text())
    document["warnings"] = [EVIL]
    document["spec"]["model"]["name"] = EVIL
    (tmp_path / "runs" / name / "result.json").write_text(json.dumps(document))
    for address in ("/runs", f"/runs/{name}", f"/compare?run={name}&run={name}", f"/runs?search={EVIL}"):
        text = client.get(address).text
        assert "<script>alert" not in text
        assert "<img src=x" not in text


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../secret.json", "~/x.json", "a/b.json", "..\\x.json", "missing.json", ".hidden.json"]
)
def test_no_file_but_a_dropped_one_can_be_named(client: TestClient, path: str, tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text("{}")
    for field in ("model", "gpu", "router_load", "slow"):
        assert 'class="mistake"' in client.get("/answer", params={**QUESTION, field: path}).text
    jobs = JobList(tmp_path / "runs")
    for words in (f"llama --cluster {path}", f"llama --cluster={path}", path):
        answer = client.post("/studies/start", data={"verb": "plan", "words": words}, headers=SAME)
        assert 'class="mistake"' in answer.text
    assert jobs.all() == []


@pytest.mark.parametrize("word", ["--out=x", "--report", "listen", "real", "live", "--rows=x", "--executor=ray:x"])
def test_a_study_may_not_write_elsewhere_or_listen(client: TestClient, word: str) -> None:
    answer = client.post("/studies/start", data={"verb": "serve", "words": f"{word} llama"}, headers=SAME)
    assert 'class="mistake"' in answer.text


def test_a_dropped_config_is_used_by_its_name(client: TestClient, tmp_path: Path) -> None:
    from importlib.resources import files

    config = (files("windtunnel.physics.model") / "catalogue" / "llama-3.2-1b.json").read_bytes()
    answer = client.post("/uploads?name=../../mine.json", content=config, headers=SAME)
    assert answer.text == "mine.json"
    assert (tmp_path / "runs" / "uploads" / "mine.json").read_bytes() == config
    assert "Where the step goes" in client.get("/answer", params={**QUESTION, "model": "mine.json"}).text
    assert client.post("/uploads?name=run.exe", content=b"x", headers=SAME).status_code == 400
    too_long = client.post("/keep", content=b"x" * (FORM_BYTES_MOST + 1), headers=SAME)
    assert too_long.status_code == 413


def test_runs_are_listed_searched_tagged_compared_and_deleted(client: TestClient, tmp_path: Path) -> None:
    first, second = kept(client), kept(client, tp="2")
    client.post(f"/runs/{first}/tags", data={"tags": "baseline, march"}, headers=SAME)
    rows = client.get("/runs/rows").text
    assert first in rows
    assert "baseline, march" in rows
    assert second not in client.get("/runs/rows?search=BASELINE llama").text
    assert first not in client.get("/runs/rows", params={"search": "tp 2"}).text
    both = client.get(f"/compare?run={first}&run={second}").text
    assert "What was asked differently" in both
    assert "plan.tp" in both
    for kind, begins in (("html", b"<!doctype html>"), ("trace", b"\x1f\x8b"), ("json", b"{")):
        assert client.get(f"/runs/{first}/file/{kind}").content.startswith(begins)
    assert client.get("/runs/aaaaaaaaaaaa").status_code == 404
    assert client.get("/runs/..%2f..%2fetc").status_code == 404
    client.post(f"/runs/delete?run={first}", headers=SAME)
    assert not (tmp_path / "runs" / first).exists()
    assert first not in client.get("/runs/rows").text
    assert "baseline" not in (tmp_path / "runs" / "tags.json").read_text()


def test_runs_that_look_alike_are_told_apart(client: TestClient) -> None:
    plain, slowed = kept(client), kept(client, slow="gpu=3:1.3")
    rows = client.get("/runs/rows").text
    assert plain in rows
    assert slowed in rows
    assert rows.count("slow gpu=3:1.3") == 1
    assert "global-batch" not in rows  # both were asked that
    assert "slow gpu=3:1.3" not in client.get("/runs/rows", params={"search": "gpu=3:1.3"}).text  # it stands alone


def test_a_damaged_run_is_a_line_that_says_why(client: TestClient, tmp_path: Path) -> None:
    name = kept(client)
    (tmp_path / "runs" / name / "result.json").write_text("{")
    rows = client.get("/runs/rows").text
    assert name in rows
    assert "result.json" in rows


def wait(jobs: JobList, name: str, seconds: float = 120.0) -> str:
    end = time.monotonic() + seconds
    while jobs.get(name).state == "running" and time.monotonic() < end:
        time.sleep(0.1)
    return jobs.get(name).state


def test_a_study_outlives_the_page_and_is_found_again(client: TestClient, tmp_path: Path) -> None:
    answer = client.post(
        "/studies/start", data={"verb": "plan", "words": "no-such-model --cluster h100-sxm:8"}, headers=SAME,
        follow_redirects=False,
    )  # fmt: skip
    name = answer.headers["location"].rpartition("/")[2]
    jobs = JobList(tmp_path / "runs")  # as another server would find it
    assert wait(jobs, name) == "failed"
    assert "no-such-model" in client.get(f"/studies/{name}").text
    assert client.get(f"/studies/{name}/watch").text.startswith("data: ")
    client.post(f"/studies/{name}/delete", headers=SAME)
    assert jobs.all() == []


def test_a_study_imports_from_where_the_server_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A study runs in the folder of the dropped files, from which `PYTHONPATH=src` is another place."""
    (tmp_path / "here" / "windtunnel").mkdir(parents=True)
    (tmp_path / "here" / "windtunnel" / "__init__.py").touch()
    (tmp_path / "here" / "windtunnel" / "__main__.py").write_text("print('from here')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "here")
    jobs = JobList(tmp_path / "runs")
    name = jobs.start("model", "llama-3.1-8b")
    wait(jobs, name)
    assert (jobs.path(name) / "answer.json").read_text() == "from here\n"


def test_a_study_imports_nothing_that_was_dropped_on_the_page(tmp_path: Path) -> None:
    jobs = JobList(tmp_path / "runs")
    jobs.uploads.mkdir(parents=True)
    (jobs.uploads / "yaml.py").write_text("raise SystemExit('from the page')")
    name = jobs.start("model", "llama-3.1-8b")
    wait(jobs, name)
    assert json.loads((jobs.path(name) / "answer.json").read_text())["parameters"] == 8_030_261_248


def test_the_hubs_ids_of_shipped_models_are_no_paths(tmp_path: Path) -> None:
    jobs = JobList(tmp_path)
    line = "vllm serve Qwen/Qwen3-8B-FP8 --tensor-parallel-size 2"
    assert jobs._words(f"'{line}' --model=Qwen/Qwen3-8B") == [line, "--model=Qwen/Qwen3-8B"]
    jobs._words("'python -m vllm.entrypoints.openai.api_server --model=Qwen/Qwen3-8B'")
    for wrong in (
        "vllm serve /etc/passwd",
        "vllm serve Qwen/Qwen3-8B --chat-template=../x",
        "etc/passwd",
        "a/../../qwen3-8b",
    ):
        with pytest.raises(SpecError, match="drop it on the form"):
            jobs._words(f"'{wrong}'")


def test_a_study_that_runs_is_stopped_with_all_its_processes(tmp_path: Path) -> None:
    jobs = JobList(tmp_path)
    words = "llama-3.1-405b --cluster h100-sxm:8192 --global-batch 1536 --seq 8192"
    name = jobs.start("plan", words)
    assert jobs.get(name).state == "running"
    assert jobs.get(name).command == f"windtunnel plan {words}"
    jobs.stop(name)
    assert jobs.get(name).state == "stopped"
    marker = str(jobs.path(name)).encode()

    def left() -> list[str]:
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                text = path.read_bytes()
                state = (path.parent / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if marker in text and state != "Z":
                found.append(str(path))
        return found

    end = time.monotonic() + 20
    while left() and time.monotonic() < end:
        time.sleep(0.1)
    assert left() == []


def test_a_search_for_the_best_plan_keeps_what_was_asked_but_the_layout(client: TestClient, tmp_path: Path) -> None:
    asked = {**QUESTION, "tp": "2", "precision": "fp8", "nic": "800 Gb/s", "slow": "gpu=3:1.25"}
    answer = client.post("/search", data=asked, headers=SAME | {"hx-request": "true"})
    jobs, name = JobList(tmp_path / "runs"), answer.headers["hx-redirect"].rpartition("/")[2]
    jobs.stop(name)
    assert " ".join(jobs.get(name).words) == (
        "llama-3.2-1b --cluster h100-sxm:8 --global-batch 16 --seq-len 1024 --precision fp8"
        " --set cluster.nic=800 Gb/s --slow gpu=3:1.25"
    )
    wrong = client.post("/search", data={**QUESTION, "micro_batch": "x"}, headers=SAME | {"hx-request": "true"})
    assert 'data-field="micro_batch"' in wrong.text


def test_plans_are_drawn_while_they_are_found_and_lead_to_ask(client: TestClient, tmp_path: Path) -> None:
    words = "llama-3.2-1b --cluster h100-sxm:4 --global-batch 8 --seq 512 --tp 2 --pp 1 --cp 1 --recompute none"
    begun = client.post("/studies/start", data={"verb": "plan", "words": words}, headers=SAME)
    name = str(begun.url).rpartition("/")[2]
    with client.stream("GET", f"/studies/{name}/watch") as events:
        told = "".join(events.iter_text())
    assert '"state": "done"' in told
    assert "event: points" in told
    points = client.get(f"/studies/{name}/points").json()
    text = client.get(f"/studies/{name}").text
    best = json.loads((JobList(tmp_path / "runs").path(name) / "answer.json").read_text())["plans"][0]
    assert min(point[0] for point in points) == pytest.approx(best["step_time_s"], rel=1e-3)
    address = html.unescape(text.partition('<a href="/?')[2].partition('"')[0])
    asked = dict(parse_qsl(address))
    assert (asked["model"], asked["gpu"], asked["gpus"], asked["tp"]) == ("llama-3.2-1b", "h100-sxm", "4", "2")
    run = client.get(f"/runs/{kept(client, **asked)}/file/json").json()
    assert run["step_time_s"] == pytest.approx(best["step_time_s"], rel=1e-9)  # the whole report of that plan


def test_a_thousand_runs_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel.faces.report import run_list as runs

    read: list[str] = []
    monkeypatch.setattr(runs, "load", lambda folder: read.append(folder.name) or _raise())

    def _raise() -> Any:
        raise runs.UserError("not looked into")

    for number in range(1000):
        folder = tmp_path / f"{number:012x}"
        folder.mkdir()
        (folder / "result.json").write_text("{}")
    listed = RunList(tmp_path)
    newest, count = listed.newest(200)
    assert (len(newest), count, len(read)) == (200, 1000, 200)  # no more than is shown
    assert len(listed.all()) == 1000
    assert len(listed.all()) == 1000
    assert len(read) == 1000


def test_names_of_files_and_words(tmp_path: Path) -> None:
    assert file_or_name("model", " llama-3-8b ", tmp_path) == "llama-3-8b"
    asked = asked_of({**QUESTION, "nic": "800 Gb/s", "router_load": "zipf:0.5"}, tmp_path)
    assert asked.cluster == "h100-sxm:8"
    assert asked.sets == ("cluster.nic=800 Gb/s",)
    assert asked.scenario == Scenario(router_load="zipf:0.5")
    scope: dict[str, Any] = {}
    exec(asked_of(QUESTION, tmp_path).as_python(), scope)
    assert scope["result"].n_gpus == 8


TITAN = """
[model]
name = "llama3"
flavor = "8B"
[parallelism]
tensor_parallel_degree = 2
data_parallel_shard_degree = 4
[training]
local_batch_size = 1
global_batch_size = 16
seq_len = 1024
"""


def test_a_dropped_plan_of_a_framework_is_the_command_lines(client: TestClient, tmp_path: Path) -> None:
    from windtunnel.faces.cli import main

    dropped = client.post("/uploads?name=train.toml", content=TITAN.encode(), headers=SAME)
    assert (dropped.text, dropped.headers["x-field"]) == ("train.toml", "plan_file")
    asked = {"model": "", "gpu": "h100-sxm", "gpus": "8", "plan_file": "train.toml"}
    name = client.post("/keep", data=asked, headers=SAME | {"hx-request": "true"}).text.partition("/runs/")[2][:12]
    path = tmp_path / "runs" / "uploads" / "train.toml"
    command = ["predict", str(path), "--cluster", "h100-sxm:8", "--out", str(tmp_path / "cli"), "--json"]
    assert main(command) == 0
    assert (tmp_path / "runs" / name / "result.json").read_bytes() == next(
        (tmp_path / "cli").glob("**/result.json")
    ).read_bytes()
    answer = client.get("/answer", params=asked).text
    assert "tp: 2" in answer  # as YAML: what the file says
    client.post(
        "/uploads?name=train.toml",
        content=TITAN.replace("_degree = 4", "_degree = 8").replace("= 2", "= 1").encode(),
        headers=SAME,
    )
    assert "tp: 2" not in client.get("/answer", params=asked).text  # the same name, another file
    wrong = client.get("/answer", params={**asked, "plan_file": "/etc/passwd"}).text
    assert 'data-field="plan_file"' in wrong


@pytest.mark.parametrize(
    ("name", "text", "field"),
    [
        ("a.json", '{"model_type": "llama", "hidden_size": 8}', "model"),
        ("a.json", '{"train_batch_size": 8}', "plan_file"),
        ("a.yaml", "tp: 2\nglobal_batch: 8\n", "plan_file"),
        ("a.yaml", "gpu: h100-sxm\nn_gpus: 8\n", "gpu"),
        ("a.csv", "layer,expert,count\n", "router_load"),
        ("a.parquet", "x", ""),
    ],
)
def test_a_dropped_file_goes_where_it_belongs(tmp_path: Path, name: str, text: str, field: str) -> None:
    (tmp_path / name).write_text(text)
    assert field_for(tmp_path / name) == field


def test_points_of_a_sweep_are_told_once_each_and_a_torn_line_later(tmp_path: Path) -> None:
    def line(tp: int, status: str = "ok") -> bytes:
        outputs = {"step_time_s": 2.0 / tp, "tokens_per_s": 3.6e6 * tp, "n_gpus": 8, "peak_memory_bytes": 2**30}
        inputs = {"model": "m", "cluster": "h100-sxm:8", "plan.tp": tp}
        return json.dumps({"key": str(tp), "status": status, "outputs": outputs, "inputs": inputs}).encode() + b"\n"

    journal = tmp_path / "sweep.parquet.journal"
    journal.write_bytes(line(1) + line(2) + line(4)[:20])
    first, offset = journalled(tmp_path, 0)
    assert [point[0] for point in first] == [2.0, 1.0]
    assert first[0][1:3] == [1.0, pytest.approx(8 / 3.6e3 / 3.6)]  # 8 GPUs / 3600 s/h / (3.6 million tokens/s)
    assert first[1][4] == "gpu=h100-sxm&gpus=8&model=m&tp=2"
    assert journalled(tmp_path, offset) == ([], offset)
    journal.write_bytes(line(1) + line(2) + line(4) + line(8, "infeasible"))
    assert [point[0] for point in journalled(tmp_path, offset)[0]] == [0.5]
    assert len(tabled(tmp_path)) == 3


def test_a_sweep_of_the_page_ends_with_its_points(client: TestClient) -> None:
    study = (
        "verb: predict\nfixed: {model: llama-3.2-1b, cluster: 'h100-sxm:8', plan.global_batch: 16, plan.seq_len: 512}\n"
        "grid: {plan.tp: [1, 2, 3]}\n"
    )
    client.post("/uploads?name=study.yaml", content=study.encode(), headers=SAME)
    begun = client.post("/studies/start", data={"verb": "sweep", "words": "study.yaml --jobs 1"}, headers=SAME)
    name = str(begun.url).rpartition("/")[2]
    with client.stream("GET", f"/studies/{name}/watch") as events:
        assert '"state": "done"' in "".join(events.iter_text())
    points = client.get(f"/studies/{name}/points").json()
    assert sorted(point[4].rpartition("tp=")[2] for point in points) == ["1", "2"]  # 3 does not divide
    step = json.loads(client.get(f"/runs/{kept(client, tp='2', seq_len='512')}/file/json").text)["step_time_ns"]
    assert step / 1e9 in [point[0] for point in points]
