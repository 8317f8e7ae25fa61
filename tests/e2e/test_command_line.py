"""What a person types at the command line, and what they see.

`run` calls it in this process; where a process of its own shows more, `run_process` starts one."""

from __future__ import annotations

import csv
import gzip
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from in_this_process import command_line as run

PREDICT = [
    "predict",
    "llama-3-8b",
    "--cluster",
    "h100-sxm:16",
    "--tp",
    "2",
    "--global-batch",
    "32",
    "--seq",
    "4096",
    "--no-advice",
]
MEASUREMENTS = Path(__file__).parents[2] / "validation" / "measurements.csv"


def run_process(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "windtunnel.faces.cli", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environment},
        check=False,
    )


def refused(*words: str, cwd: Path) -> str:
    """The one message of a mistake."""
    done = run(*words, cwd=cwd)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("windtunnel: error: ")
    return lines[0]


@pytest.mark.parametrize("words", [["--no-save"], ["--no-save", "--json"]])
def test_output_on_a_full_disk_is_one_message(tmp_path: Path, words: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "windtunnel.faces.cli", *PREDICT, *words],
            cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("windtunnel: error: the output cannot be written (No space left on device)")


def test_help_names_the_verbs(tmp_path: Path) -> None:
    done = run_process("--help", cwd=tmp_path)
    assert done.returncode == 0
    assert all(verb in done.stdout for verb in ("predict", "validate", "compare", "version"))


def test_version(tmp_path: Path) -> None:
    flag, verb = run("--version", cwd=tmp_path), run("version", cwd=tmp_path)
    assert flag.stdout == verb.stdout
    assert flag.stdout.startswith("windtunnel ")


def test_predict_shows_saves_and_compares(tmp_path: Path) -> None:
    done = run(*PREDICT, "--report", "run.html", "--trace", "run.json.gz", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for words in ("step time", "tokens/s/GPU", "MFU", "peak memory", "p5"):
        assert words in done.stdout
    assert (tmp_path / "run.html").read_text(encoding="utf-8").lstrip().lower().startswith("<!doctype html>")
    assert json.loads(gzip.decompress((tmp_path / "run.json.gz").read_bytes()))["traceEvents"]
    (folder,) = (tmp_path / "runs").iterdir()
    assert run(*PREDICT, "--precision", "fp8", cwd=tmp_path).returncode == 0
    other = next(path for path in (tmp_path / "runs").iterdir() if path != folder)
    compared = run("compare", str(folder), str(other), "--json", cwd=tmp_path)
    assert compared.returncode == 0, compared.stderr
    assert json.loads(compared.stdout)
    assert run("compare", folder.name[:8], str(other), cwd=tmp_path).stdout


def test_whatif_asks_a_saved_run_again(tmp_path: Path) -> None:
    even, slow = run(*PREDICT, "--json", cwd=tmp_path), run(*PREDICT, "--slow", "gpu=3:1.3", "--json", cwd=tmp_path)
    (folder,) = [word for word in slow.stderr.split() if word.startswith("runs")]
    done = run("whatif", folder, "--set", "slow.none", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["b"]["content_hash"] == json.loads(even.stdout)["content_hash"]
    assert [(one["field"], one["b"]) for one in document["spec"]] == [("slow", None)]
    screen = run("whatif", folder, "--set", "slow.none", "--no-save", cwd=tmp_path, COLUMNS="80")
    assert "slow gpu=3:1.3 → none" in " ".join(screen.stdout.split())
    assert max(map(len, screen.stdout.splitlines())) <= 80


def test_samples_of_nothing_random_are_remarked_on(tmp_path: Path) -> None:
    assert "--samples changes nothing" in run(*PREDICT, "--samples", "9", "--no-save", cwd=tmp_path).stderr
    assert "--samples" not in run(*PREDICT, "--samples", "9", "--jitter", "1%", "--no-save", cwd=tmp_path).stderr


def test_the_same_question_gives_the_same_bytes_and_python_agrees(tmp_path: Path) -> None:
    first, second = (start(*PREDICT, "--json", "--no-save", cwd=tmp_path) for start in (run_process, run))
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    assert not (tmp_path / "runs").exists()
    from windtunnel.studies.training import predict

    result = predict("llama-3-8b", "h100-sxm:16", {"tp": 2, "global_batch": 32, "seq_len": 4096})
    assert json.loads(first.stdout)["step_time_ns"] == result.step_time_ns


def test_what_reproduce_says_reproduces(tmp_path: Path) -> None:
    words = ["--set", "cluster.nic=200Gb/s", "--precision", "fp8", "--cuda-graphs"]
    first = json.loads(run(*PREDICT, *words, "--json", "--no-save", cwd=tmp_path).stdout)
    again = shlex.split(first["reproduce"])
    assert again.pop(0) == "windtunnel"
    done = run(*again, "--json", "--no-save", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["step_time_ns"] == first["step_time_ns"]


def test_infeasible_is_an_answer_with_a_status_of_its_own(tmp_path: Path) -> None:
    words = [
        "predict",
        "llama-3.1-405b",
        "--cluster",
        "h100-sxm:8",
        "--tp",
        "8",
        "--global-batch",
        "8",
        "--seq",
        "8192",
    ]
    done = run(*words, "--no-save", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert "memory" in done.stdout
    document = run(*words, "--no-save", "--no-advice", "--json", cwd=tmp_path)
    assert document.returncode == 3
    assert json.loads(document.stdout)["status"] == "infeasible"


def test_output_survives_a_plain_terminal_and_a_closed_pipe(tmp_path: Path) -> None:
    plain = run_process(*PREDICT, "--no-save", cwd=tmp_path, PYTHONIOENCODING="ascii", COLUMNS="60")
    assert plain.returncode == 0, plain.stderr
    assert max(map(len, plain.stdout.splitlines())) <= 60
    command = shlex.join([sys.executable, "-m", "windtunnel.faces.cli", *PREDICT, "--json", "--no-save"])
    piped = subprocess.run(
        ["bash", "-c", f"{command} | true"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert piped.stderr == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["predict", "llama-3-8b", "--cluster", "h100-sxm:8", "--tpp", "2"], "--tp"),
        (["predict", "llama-3-8b", "--cluster", "h100-sxm:8", "--tp", "two"], "two"),
        (["predict", "llama-3-8b", "--cluster", "h100-sxm:8", "--tp", "1.5"], "whole number"),
        (["predict", "llama-3-8b"], "--cluster"),
        (["predict", "llama-3-8b", "--cluster", "h100-sxm:8", "--seq", "4096"], "--global-batch"),
        (["predict", "llama-9-8b", "--cluster", "h100-sxm:8", "--global-batch", "8", "--seq", "64"], "llama"),
        (["predict", "llama-3-8b", "--cluster", "h1000:8", "--global-batch", "8", "--seq", "64"], "h100"),
        (
            [
                "predict",
                "llama-3-8b",
                "--cluster",
                "h100-sxm:8+a100:8",
                "--tp",
                "16",
                "--global-batch",
                "16",
                "--seq",
                "64",
            ],
            "lie on two types",
        ),
        ([*PREDICT, "--pp", "3"], "does not divide"),
        ([*PREDICT, "--precision", "nvfp4"], "precision"),
        ([*PREDICT, "--set", "cluster.nick=1"], "nick"),
        ([*PREDICT, "--plan", "none.yaml"], "none.yaml"),
        (["predict", "./none.json", "--cluster", "h100-sxm:8", "--global-batch", "8", "--seq", "64"], "none.json"),
        (["validate", "none.csv"], "none.csv"),
        (["compare", "none", "nor-this"], "none"),
        (["whatif", "none", "--set", "slow.none"], "none"),
        (["whatif"], "RUN"),
        ([*PREDICT, "--slow", "gpu=16:1.2"], "0 to 15"),
        ([*PREDICT, "--slow", "gpu=3"], "gpu=NUMBER:FACTOR"),
        ([*PREDICT, "--slow", "stage=1:1.2"], "stages"),
        ([*PREDICT, "--slow", "link=node2.nic0:0.5"], "0 to 1"),
        ([*PREDICT, "--slow", "none.yaml"], "none.yaml"),
        ([*PREDICT, "--slow", "pause=200%:1s"], "100 %"),
        ([*PREDICT, "--jitter", "300%"], "100 %"),
        ([*PREDICT, "--samples", "1.5"], "--samples"),
        ([*PREDICT, "--router-load", "zipf:1"], "no experts"),
        ([*PREDICT, "--lengths", "none.csv"], "length,count"),
        (["predcit"], "predict"),
    ],
)
def test_a_mistake_is_one_message_with_the_remedy(tmp_path: Path, words: list[str], said: str) -> None:
    assert said in refused(*words, cwd=tmp_path)


def test_a_mistake_in_a_process_of_its_own_is_the_same(tmp_path: Path) -> None:
    here, there = (start(*PREDICT, "--pp", "3", cwd=tmp_path) for start in (run, run_process))
    assert (here.returncode, here.stdout, here.stderr) == (there.returncode, there.stdout, there.stderr)


def test_files_with_mistakes(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text("tp: 2\ntensor: 3\n")
    assert "tensor" in refused(*PREDICT, "--plan", "plan.yaml", cwd=tmp_path)
    (tmp_path / "plan.yaml").write_text("tp: [2\n")
    assert "plan.yaml" in refused(*PREDICT, "--plan", "plan.yaml", cwd=tmp_path)
    rest = ["--cluster", "h100-sxm:8", "--global-batch", "8", "--seq", "64"]
    (tmp_path / "config.json").write_text("{not json")
    assert "config.json" in refused("predict", "./config.json", *rest, cwd=tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "cobra", "architectures": ["CobraForCausalLM"]}')
    assert "cobra" in refused("predict", "./config.json", *rest, cwd=tmp_path).lower()
    (tmp_path / "cluster.yaml").write_text("gpu: h100-sxm\nn_gpus: 8\nspeed: 3\n")
    rest[1] = "cluster.yaml"
    assert "speed" in refused("predict", "llama-3-8b", *rest, cwd=tmp_path)


def some_measurements(path: Path, wanted: int = 6) -> list[dict[str, str]]:
    with MEASUREMENTS.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["source"].startswith(("MLPerf", "Korthikanti"))][-wanted:]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return rows


@pytest.mark.parametrize("columns", ["80", "160"])
def test_validate_prints_scores_and_writes_every_row(tmp_path: Path, columns: str) -> None:
    rows = some_measurements(tmp_path / "t.csv")
    done = run("validate", "t.csv", "--rows", "rows.csv", "--page", "accuracy.md", cwd=tmp_path, COLUMNS=columns)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= int(columns)
    assert "skipped" in done.stdout  # no word is cut
    assert all(row["source"].split()[0] in done.stdout for row in rows)
    with (tmp_path / "rows.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    assert [line["id"] for line in written] == [row["id"] for row in rows]
    assert {line["status"] for line in written} <= {"ok", "infeasible", "skipped"}
    assert all(line["step_time_s"] for line in written if line["status"] == "ok")
    assert (tmp_path / "accuracy.md").read_text().startswith("# Accuracy")
    report = json.loads(run("validate", "t.csv", "--json", "--anchor", "smallest", cwd=tmp_path).stdout)
    assert report["anchor"] == "smallest"
    assert len(report["rows"]) == len(rows)


def test_validate_names_the_broken_cell(tmp_path: Path) -> None:
    some_measurements(tmp_path / "t.csv")
    text = (tmp_path / "t.csv").read_text().splitlines()
    header = text[0].split(",")
    (tmp_path / "t.csv").write_text("\n".join([*text, "broken"]))
    assert f"line {len(text) + 1}" in refused("validate", "t.csv", cwd=tmp_path)
    cells = next(csv.reader([text[1]]))
    cells[header.index("tp")] = "four"
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header, cells])
    assert "line 2, column tp: 'four'" in refused("validate", "t.csv", cwd=tmp_path)


def test_the_shipped_measurements_are_readable_and_small() -> None:
    from windtunnel.evidence.accuracy import read_table

    rows = read_table(MEASUREMENTS)
    assert all(row.url_or_file and row.licence for row in rows)
    assert MEASUREMENTS.stat().st_size < 1 << 20


def test_a_gpu_is_named_by_its_base_as_by_its_name(tmp_path: Path) -> None:
    words = ["llama-3.2-1b", "--cluster", "h100-sxm:8", "--global-batch", "8", "--seq", "512"]
    words += ["--no-save", "--no-advice", "--json"]
    asked, by_name, by_base = (
        json.loads(run("predict", *words, *changed, cwd=tmp_path).stdout)["step_time_s"]
        for changed in ([], ["--set", "cluster.gpu=a100-80gb"], ["--set", "cluster.gpu.base=a100-80gb"])
    )
    assert by_base == by_name > asked


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--recompute", "full:99"], "the model has"),
        (["--schedule", "zb-v"], "there is no pipeline"),
        (["--report", "x", "--trace", "x"], "give each a name of its own"),
        (["--set", "plan.tp=two"], "give a whole number"),
        (["--tp", "3"], "use 6 or 24 GPUs"),
    ],
)
def test_what_would_be_ignored_or_is_unclear_is_one_clear_error(words: list[str], said: str, tmp_path: Path) -> None:
    question = [
        "predict",
        "llama-3.2-1b",
        "--cluster",
        "h100-sxm:8",
        "--global-batch",
        "8",
        "--seq",
        "512",
        "--no-save",
    ]
    done = run(*question, *words, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
