"""The page where something goes wrong: foreign text, a full disk, two tabs, a server that is killed, large requests."""

from __future__ import annotations

import html
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")

from starlette.testclient import TestClient

from windtunnel.errors import InputFileError
from windtunnel.faces.report.run_list import RunList
from windtunnel.faces.ui.jobs import Job, JobList
from windtunnel.faces.ui.server import FORM_BYTES_MOST, UPLOAD_BYTES_MOST, application
from windtunnel.faces.ui.swept import PLANS

HERE = "127.0.0.1:8765"
SAME = {"origin": f"http://{HERE}"}
QUESTION = {"model": "llama-3.2-1b", "gpu": "h100-sxm", "gpus": "8", "global_batch": "16", "seq_len": "1024"}
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
JOB = "20260101000000-abcdef"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with TestClient(application(tmp_path / "runs", frozenset({HERE})), base_url=f"http://{HERE}") as found:
        yield found


def keep(client: TestClient, **changes: str) -> str:
    return client.post("/keep", data={**QUESTION, **changes}, headers=SAME | {"hx-request": "true"}).text


def written_job(root: Path, verb: str, answer: str = "{}", said: str = "", status: str = "0") -> Path:
    """A job that has ended, as its process leaves it."""
    folder = root / "jobs" / JOB
    folder.mkdir(parents=True)
    document = {"verb": verb, "words": [EVIL, f"--cluster={EVIL}"], "begun_s": 0.0, "process": 1}
    for name, text in (("job.json", json.dumps(document)), ("answer.json", answer), ("progress.txt", said)):
        (folder / name).write_text(text)
    (folder / "status").write_text(status)
    return folder


@pytest.mark.parametrize("verb", ["plan", "sweep", "explain"])
def test_text_of_a_study_is_never_markup(client: TestClient, tmp_path: Path, verb: str) -> None:
    plan = {
        "plan": {"tp": EVIL}, "reproduce": f"windtunnel predict {shlex.quote(EVIL)} --cluster h100-sxm:8", "mfu": 0.5,
        "n_gpus": 8, "step_time_s": 1.0, "p5_s": 0.9, "p95_s": 1.1, "peak_memory_bytes": 1,
        "gpu_hours_per_million_tokens": 1.0,
    }  # fmt: skip
    answer = {
        "plans": [plan], "front": [], "status": "ok", "gap": 0, "decides": EVIL, "rule_of_thumb": None,
        "choices": [{"field": EVIL, "value": EVIL, "exact": True, "regret_at_least": 0.1}], "launch": {EVIL: EVIL},
        "sensitivity": [{"price": EVIL, "winner": EVIL}],
        "space": {"legal": 1, "replayed": 1, "excluded_by_memory": 0, "bounded": 0},
    }  # fmt: skip
    folder = written_job(tmp_path / "runs", verb, json.dumps(answer), EVIL)
    inputs = {"model": EVIL, "cluster": f"{EVIL}:8", "plan.tp": EVIL}
    outputs = {"step_time_s": 1.0, "tokens_per_s": 1.0, "n_gpus": 8, "peak_memory_bytes": 1}
    (folder / PLANS).write_text(json.dumps({"status": "ok", "inputs": inputs, "outputs": outputs}) + "\n")
    for address in ("/studies", f"/studies/{JOB}", f"/studies/{JOB}/state"):
        text = client.get(address).text
        assert "alert(1)" in text
        assert "<script>alert" not in text
        assert "<img src=x" not in text
    points = client.get(f"/studies/{JOB}/points")
    assert points.headers["content-type"] == "application/json"  # drawn as text; no markup wherever it is opened
    assert points.headers["x-content-type-options"] == "nosniff"
    assert "<" not in points.json()[0][4]  # what becomes an address


def test_a_report_that_a_study_drew_is_shown_without_the_page(client: TestClient, tmp_path: Path) -> None:
    folder = written_job(tmp_path / "runs", "explain")
    (folder / "report.html").write_text(EVIL)
    policy = client.get(f"/studies/{JOB}/report").headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts;")  # an origin of its own: no cookie, no request to the page
    assert "default-src 'none'" in policy
    assert 'sandbox="allow-scripts"' in client.get(f"/studies/{JOB}").text


def test_names_of_dropped_files_are_never_markup(client: TestClient) -> None:
    text = client.post("/uploads", params={"name": f"{EVIL}.json"}, content=b"{}", headers=SAME).text
    assert not set("<>\"'") & set(text)
    assert "<script>alert" not in client.get("/studies").text


def test_a_large_request_is_refused_before_it_is_read(client: TestClient) -> None:
    length = {"content-length": str(UPLOAD_BYTES_MOST + 1)}
    assert client.post("/uploads?name=a.json", content=b"x", headers=SAME | length).status_code == 413
    parts = (bytes(1 << 16) for _ in range(2 * FORM_BYTES_MOST >> 16))
    assert client.post("/keep", content=parts, headers=SAME).status_code == 413  # chunked: nobody knew how much comes


@contextmanager
def full_disk(most: int = 300) -> Iterator[None]:
    """No file may grow beyond `most` bytes: the write fails as it does where the disk is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def every_file(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_full_disk_loses_nothing(client: TestClient, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    name = keep(client).partition("/runs/")[2][:12]
    client.post(f"/runs/{name}/tags", data={"tags": "baseline"}, headers=SAME)
    before = every_file(root)
    client.get("/answer", params={**QUESTION, "tp": "2"})  # so that the kernels are there before the disk is full
    with full_disk():
        again = keep(client)
        other = keep(client, tp="2")
        tagged = client.post(f"/runs/{name}/tags", data={"tags": ", ".join("abcdefghijkl" * 1 + "x" * 400)},
                             headers=SAME | {"hx-request": "true"})  # fmt: skip
        dropped = client.post("/uploads?name=big.json", content=b"x" * 4000, headers=SAME)
    for said in (again, other):
        assert 'class="mistake"' in said
        assert "cannot be written" in said
    assert dropped.status_code == 400
    assert tagged.status_code == 200
    after = every_file(root)
    assert {file: after.get(file) for file in before if file != "tags.json"} == {
        file: content for file, content in before.items() if file != "tags.json"
    }
    assert json.loads(after["tags.json"])[name]  # the old tags or the new ones, whole
    assert not [file for file in after if Path(file).name.startswith(".")]  # nothing half written is left
    assert [run.name for run in RunList(root).all()] == [name]
    assert "/runs/" in keep(client, tp="2")  # and with room again it goes on


def test_a_study_that_cannot_be_noted_does_not_run(tmp_path: Path) -> None:
    from windtunnel.errors import UserError

    jobs = JobList(tmp_path)
    with full_disk(20), pytest.raises(UserError, match="cannot be written"):
        jobs.start("plan", "llama-3.1-405b --cluster h100-sxm:8192 --global-batch 1536 --seq 8192")
    assert jobs.all() == []
    assert list(jobs.folder.iterdir()) == []


def test_two_tabs_do_not_undo_each_other(client: TestClient, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    names = [keep(client, seq_len=str(512 * number)).partition("/runs/")[2][:12] for number in (1, 2, 3, 4)]
    runs = RunList(root)

    def tag(number: int) -> None:
        for turn in range(5):
            runs.tag(names[number], f"tag {number}, turn {turn}")

    with ThreadPoolExecutor(4) as tabs:
        list(tabs.map(tag, range(4)))
        kept = list(tabs.map(lambda _: keep(client, seq_len="512"), range(4)))
    assert RunList(root).tags() == {name: (f"tag {number}", "turn 4") for number, name in enumerate(names)}
    assert all(names[0] in one for one in kept)  # the same question is the same folder
    client.post(f"/runs/delete?run={names[0]}", headers=SAME)
    late = client.post(f"/runs/delete?run={names[0]}", headers=SAME | {"hx-request": "true"})  # the other tab, later
    assert "is no run of this list" in late.text
    assert client.get(f"/compare?run={names[0]}&run={names[1]}").status_code == 404
    assert sorted(RunList(root).names()) == sorted(names[1:])


def test_a_study_that_another_tab_removes_ends_what_is_watched(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "20260101000000-abcdef"
    (tmp_path / "runs" / "jobs" / name).mkdir(parents=True)
    job = Job(name, "survive", (), 0.0, "running", None, "said", report=False)
    answers = iter([job, job])

    def get(self: JobList, name: str) -> Job:
        found = next(answers, None)
        if found is None:
            raise InputFileError(name, "is no job of this page", "choose one from the list")
        return found

    monkeypatch.setattr(JobList, "get", get)
    assert '"state": "running"' in client.get(f"/studies/{name}/watch").text  # and it ends, with no error


def test_a_server_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    command = [sys.executable, "-m", "windtunnel", "ui", "--no-open", "--port", "0", "--runs", str(root)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            match = re.search(r"http://\S+/", server.stderr.readline())
            assert match is not None
            address = match[0]

            def posted(place: str, body: str) -> str:
                headers = {"origin": address.rstrip("/"), "hx-request": "true"}
                request = urllib.request.Request(f"{address}{place}", body.encode(), headers)
                with urllib.request.urlopen(request, timeout=120) as answer:
                    return str(answer.headers.get("hx-redirect") or answer.read().decode())

            assert posted("uploads?name=study.yaml", "verb: predict\n") == "study.yaml"
            name = posted("studies/start", "verb=plan&words=no-such-model+--cluster+h100-sxm:8").rpartition("/")[2]
        finally:
            os.kill(server.pid, signal.SIGKILL)
            server.wait()
    jobs = JobList(root)
    for _ in range(1200):
        if jobs.get(name).state != "running":
            break
        time.sleep(0.1)
    assert jobs.get(name).state == "failed"  # by itself: there is no such model. Not stopped with the server
    with TestClient(application(root, frozenset({HERE})), base_url=f"http://{HERE}") as client:
        assert "no-such-model" in client.get(f"/studies/{name}").text
        assert "study.yaml" in client.get("/studies").text


def test_what_is_copied_from_the_page_gives_the_pages_run(client: TestClient, tmp_path: Path) -> None:
    import windtunnel
    from windtunnel.faces.cli import main

    asked = {**QUESTION, "tp": "2", "slow": "gpu=3:1.25"}
    name = keep(client, tp="2", slow="gpu=3:1.25").partition("/runs/")[2][:12]
    page = every_file(tmp_path / "runs" / name)
    answer = client.get("/answer", params=asked).text

    def copied(what: str) -> str:
        match = re.search(rf'<pre id="as-{what}" hidden>(.*?)</pre>', answer, re.DOTALL)
        assert match is not None
        return html.unescape(match[1])

    words = shlex.split(copied("command"))
    assert words[:2] == ["windtunnel", "predict"]
    assert main([*words[1:], "--out", str(tmp_path / "command"), "--json"]) == 0
    scope: dict[str, windtunnel.Result] = {}
    exec(copied("python"), scope)
    windtunnel.save_result(scope["result"], tmp_path / "python")
    (tmp_path / "plan.yaml").write_text(copied("yaml"))
    command = ["predict", "llama-3.2-1b", "--cluster", "h100-sxm:8", "--plan", str(tmp_path / "plan.yaml")]
    assert main([*command, "--slow", "gpu=3:1.25", "--out", str(tmp_path / "yaml"), "--json"]) == 0
    for other in ("command", "python", "yaml"):
        assert every_file(tmp_path / other / name) == page
