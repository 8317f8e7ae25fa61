"""Flags of `serve` that mean nothing where they are given: one error, with flag, value and remedy, before any work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windtunnel.errors import SpecError
from windtunnel.faces.cli import main
from windtunnel.questions.words import from_flags, words

LOAD = "--prompt 10 --output 5 --rate 3 --requests 4"
ONE = f"llama-3.1-8b --cluster h100-sxm:8 {LOAD}"
CLOSED = "llama-3.1-8b --cluster h100-sxm:8 --prompt 10 --output 5 --concurrency 3"
APART = f"{ONE} --prefill 1xtp1 --decode 1xtp1"
LISTEN = "listen llama-3.1-8b 127.0.0.1:0 --cluster h100-sxm:8"
SOUGHT = f"plan {ONE} --ttft 1s --tpot 1s --method distserve"


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        *((f"{APART} {flag} {value}", flag) for flag, value in (
            ("--replicas", "2"), ("--trace", "t.json"), ("--kernels", "/does/not/exist"), ("--router", "round-robin"),
            ("--tp", "2"), ("--dp", "2"), ("--pp", "2"), ("--ep", "2"),
        )),
        *((f"{ONE} {flag}", flag.split()[0]) for flag in (
            "--notice 5s", "--policy restart", "--speed 2", "--lose 0@3s", "--waves 3", "--max-waiting 3",
            "--record r.csv", "--attain 0.5", "--method distserve",
        )),
        (f"{ONE} --acceptance 0.5", "--speculative-tokens"),
        *((f"pool pool.yaml {flag}", flag.split()[0]) for flag in (
            "--cluster h100-sxm:1", "--rate 3", "--trace t.json", "--replicas 2", "--ttft 1s",
        )),
        *((f"{SOUGHT} {flag}", flag.split()[0]) for flag in (
            "--replicas 2", "--trace t.json", "--rows o.csv", "--kernels k", "--tp 2", "--price 2",
        )),
        (f"plan {ONE} --method muxserve --attain 0.9", "--attain"),
        (f"{CLOSED} --rate 3", "--rate"),
        (f"{CLOSED} --cv 2", "--cv"),
        ("real --ttft 1s", "--ttft"),
        (f"{LISTEN} --ttft 1s", "--ttft"),
        (f"{LISTEN} --json", "--json"),
        (f"{LISTEN} --length-ratio 0.5", "--output"),
        (f"{LISTEN} --seed 3", "--output"),
        (f"{LISTEN} --output 5 --workload w.csv", "--output"),
        (f"{LISTEN} --prefill 1xtp1 --decode 1xtp1 --tp 2", "--tp"),
        (f"{LISTEN} --prefill 1xtp1 --decode 1xtp1 --kernels k", "--kernels"),
        ("llama-3.1-8b --cluster h100-sxm:1 --workload w.csv --length-ratio 0.5", "--length-ratio"),
        (f"{ONE} --price -3", "--price"),
        *((f"{words} --seed -1", "--seed") for words in (ONE, f"{LISTEN} --output 5", f"plan {ONE}")),
        (f"{ONE} --price nan", "--price"),
        (f"{APART} --price inf", "--price"),
    ],
)  # fmt: skip
def test_a_flag_without_a_meaning_is_refused(words: str, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *words.split()]) == 2
    told = capsys.readouterr().err.strip()
    assert told.startswith("windtunnel: error: ")
    assert flag in told
    assert "\n" not in told


@pytest.mark.parametrize(
    ("before", "today"),
    [
        (f"serve {ONE} --slo ttft=1s --goodput", f"serve plan {ONE} --ttft 1s"),
        ("serve m --cluster c --listen :80 --requests in.csv", "serve listen m :80 --cluster c --workload in.csv"),
        (
            "serve m --cluster c --spot s.csv --spot-policy a --gpu-hour 2",
            "serve spot m s.csv --cluster c --policy a --price 2",
        ),
        ("serve a=1,b=2 --cluster c --search muxserve --tp 2", "serve plan a=1,b=2 --cluster c --method muxserve"),
        ("serve --real tiny-llama --rate 3", "serve real tiny-llama --rate 3"),
        ("serve pool.yaml --page p.html", "serve pool pool.yaml --report p.html"),
        ("fleet t.csv --cluster v100:8 --when j", "fleet when t.csv j --cluster v100:8"),
        ("fleet --live j.yaml --live-folder f --cluster gpu:1x4", "fleet live j.yaml --out f --cluster gpu:1x4"),
        ("fleet t.csv --cluster nodes.csv --policy fgd", "fleet pack t.csv --cluster nodes.csv --policy fgd"),
    ],
)
def test_a_word_that_is_gone_says_the_line_of_today(
    before: str, today: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(before.split()) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert f"windtunnel {today}\n" in message


def test_names_of_before_are_still_taken(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("input_tokens,output_tokens,arrival_s\n64,8,0\n64,8,1\n")
    here = ["serve", "llama-3.1-8b", "--cluster", "h100-sxm:8"]
    before = ["--slo", "ttft=1s,tpot=50ms", "--gpu-hour", "2", "--requests", str(tmp_path / "in.csv")]
    today = ["--ttft", "1s", "--tpot", "50ms", "--price", "2", "--workload", str(tmp_path / "in.csv")]
    assert main([*here, *before, "--requests-out", str(tmp_path / "a.csv"), "--json"]) == 0
    first = capsys.readouterr().out
    assert main([*here, *today, "--rows", str(tmp_path / "b.csv"), "--json"]) == 0
    assert capsys.readouterr().out == first
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()


@pytest.mark.parametrize("flag", ["--trace", "--rows", "--report"])
def test_a_place_that_cannot_be_written_is_told_before_the_work(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("it worked before it looked")

    monkeypatch.setattr("windtunnel.studies.serving.study.answer", never)
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "x.json", tmp_path):
        assert main(["serve", *ONE.split(), flag, str(place)]) == 2
        assert str(place) in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        '{"input_tokens": 3, "output_tokens": 2, "arrival_s": 0}\n{"input_tokens": 3, "output_tokens": 2}\n',
        '{"input_tokens": 3, "output_tokens": 2, "arrival_s": 0, "hash_ids": [1]}\n[1, 2]\n',
        "[]\n",
    ],
)
def test_a_file_of_requests_with_a_fault_is_no_traceback(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.jsonl").write_text(text)
    words = ["serve", "llama-3.1-8b", "--cluster", "h100-sxm:1", "--workload", str(tmp_path / "in.jsonl")]
    assert main(words) == 2
    assert "in.jsonl" in capsys.readouterr().err


def test_requests_longer_than_the_model_is_made_for_are_refused_unless_the_server_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [
        "serve",
        "llama-2-7b",
        "--cluster",
        "h100-sxm:1",
        "--output",
        "96",
        "--rate",
        "3",
        "--requests",
        "4",
        "--json",
    ]
    assert main([*words, "--prompt", "4001"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["feasible"], document["refused"], document["max_model_len"]) == (False, 4, 4096)
    assert "--max-model-len" in document["reason"]
    for more in (["--prompt", "4000"], ["--prompt", "4001", "--max-model-len", "5000"]):
        assert main([*words, *more]) == 0
        assert json.loads(capsys.readouterr().out)["finished"] == 4


def test_formats_are_the_checkpoints_unless_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "serve",
        "gpt-oss-20b",
        "--cluster",
        "h100-sxm:1",
        "--prompt",
        "99",
        "--output",
        "9",
        "--rate",
        "3",
        "--requests",
        "4",
        "--json",
    ]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["weights_format"], document["kv_format"], document["max_model_len"]) == ("bf16", "bf16", 131072)
    assert document["memory_bytes_per_gpu"]["weights"] < 16 * 2**30  # 21 billion, most of them in 4 bits
    assert (document["speculative_tokens"], document["engine"]) == (0, document["engine_calibrated_to"])
    assert main([*words, "--weights", "fp8", "--engine", "vllm-99.1"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["weights_format"], document["engine"]) == ("fp8", "vllm 99.1")
    assert document["engine_calibrated_to"] != document["engine"]
    assert any("newer than" in one for one in document["warnings"])


def test_a_placement_says_whom_it_leaves_out_and_what_the_cluster_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    load = "--prompt 100 --output 20 --requests 50 --ttft 200ms --tpot 20ms --json"
    both = f"serve plan llama-3.1-8b=9,qwen3-32b=1 --cluster h100-sxm:1 --method alpaserve --rate 5 {load}"
    assert main(both.split()) == 0
    assert "qwen3-32b: no place" in capsys.readouterr().out
    assert main(f"serve plan llama-3.1-8b --cluster h100-sxm:2 --method distserve --rate 90000 {load}".split()) == 0
    assert "the cluster has 2 GPUs: --rate 90000 takes " in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["", "plan ", "scale "])
def test_a_bare_limit_that_cannot_be_meant_asks_for_its_unit(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *f"{verb}{ONE} --tpot 40".split()]) == 2
    message = capsys.readouterr().err
    assert "--tpot" in message
    assert "give 40ms, or 40s" in message


def test_a_limit_that_needs_its_unit_is_asked_again_with_it() -> None:
    asked = from_flags("serve", {"model": "m", "cluster": "h100-sxm:8", "rate": "3", "ttft": "90s", "tpot": "0.5"})
    again = words(asked)
    assert again[again.index("--ttft") + 1] == "90s"
    assert again[again.index("--tpot") + 1] == "500ms"
    with pytest.raises(SpecError, match="give 90ms"):
        from_flags("serve", {"model": "m", "cluster": "h100-sxm:8", "rate": "3", "ttft": "90"})


def test_a_plan_takes_the_engine_of_a_command_line_and_seeks_the_layout_of_a_rate(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = "vllm serve meta-llama/Llama-3.1-8B-Instruct-FP8 --tensor-parallel-size 2 --max-num-seqs 8"
    asked = ["--cluster", "h100-sxm:2", "--prompt", "100", "--output", "5", "--requests", "20", "--ttft", "1s"]
    asked += ["--tpot", "1s", "--json"]
    assert main(["serve", "plan", line, *asked, "--rate", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "the layout of the command line is left open" in str(found["warnings"])
    assert found["plans"][0]["gpus"] == 1
    assert main(["serve", "plan", line, *asked]) == 0
    fixed = json.loads(capsys.readouterr().out)
    assert (fixed["gpus"], fixed["weights_format"]) == (2, "fp8")
