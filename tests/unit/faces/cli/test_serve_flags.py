"""Flags of `serve` that mean nothing where they are given: one error, with flag, value and remedy, before any work."""

from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel.faces.cli import main

ONE = "llama-3.1-8b --cluster h100-sxm:8 --prompt 10 --output 5 --rate 3 --requests 4"
CLOSED = "llama-3.1-8b --cluster h100-sxm:8 --prompt 10 --output 5 --concurrency 3"
APART = f"{ONE} --prefill 1xtp1 --decode 1xtp1"
LISTEN = "llama-3.1-8b --cluster h100-sxm:8 --listen 127.0.0.1:0"


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        *((f"{APART} {flag} {value}", flag) for flag, value in (
            ("--replicas", "2"), ("--trace", "t.json"), ("--kernels", "/does/not/exist"), ("--router", "round-robin"),
            ("--tp", "2"), ("--dp", "2"), ("--pp", "2"), ("--ep", "2"),
        )),
        *((f"{ONE} {flag} {value}", flag) for flag, value in (
            ("--notice", "5s"), ("--spot-policy", "restart"), ("--speed", "2"), ("--lose", "0@3s"), ("--waves", "3"),
            ("--max-waiting", "3"), ("--record", "r.csv"), ("--attain", "0.5"), ("--acceptance", "0.5"),
        )),
        *((f"pool.yaml {flag}", flag.split()[0]) for flag in (
            "--cluster h100-sxm:1", "--rate 3", "--goodput", "--trace t.json", "--replicas 2", "--slo ttft=1s",
        )),
        *((f"{ONE} --slo ttft=1s,tpot=1s --search distserve {flag}", flag.split()[0]) for flag in (
            "--replicas 2", "--report p.html", "--trace t.json", "--requests-out o.csv", "--kernels k", "--goodput",
            "--tp 2",
        )),
        (f"{ONE} --search muxserve --attain 0.9", "--attain"),
        (f"{CLOSED} --rate 3", "--rate"),
        (f"{CLOSED} --cv 2", "--cv"),
        ("--real tiny-llama --slo ttft=1s", "--slo"),
        ("--real tiny-llama --listen 127.0.0.1:0", "--listen"),
        (f"{LISTEN} --slo ttft=1s", "--slo"),
        (f"{LISTEN} --json", "--json"),
        (f"{LISTEN} --length-ratio 0.5", "--length-ratio"),
        (f"{LISTEN} --seed 3", "--seed"),
        (f"{LISTEN} --output 5 --workload w.csv", "--output"),
        (f"{LISTEN} --prefill 1xtp1 --decode 1xtp1 --tp 2", "--tp"),
        (f"{LISTEN} --prefill 1xtp1 --decode 1xtp1 --kernels k", "--kernels"),
        ("llama-3.1-8b --cluster h100-sxm:1 --workload w.csv --length-ratio 0.5", "--length-ratio"),
        (f"{ONE} --gpu-hour -3", "--gpu-hour"),
        *((f"{words} --seed -1", "--seed") for words in (ONE, LISTEN, f"{ONE} --search muxserve")),
        (f"{ONE} --gpu-hour nan", "--gpu-hour"),
        (f"{APART} --gpu-hour inf", "--gpu-hour"),
    ],
)  # fmt: skip
def test_a_flag_without_a_meaning_is_refused(words: str, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *words.split()]) == 2
    told = capsys.readouterr().err.strip()
    assert told.startswith(f"windtunnel: error: {flag} = ")
    assert "\n" not in told


@pytest.mark.parametrize("flag", ["--trace", "--requests-out", "--report", "--page"])
def test_a_place_that_cannot_be_written_is_told_before_the_work(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("it worked before it looked")

    monkeypatch.setattr("windtunnel.studies.serving.question.ask", never)
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


def test_prompts_longer_than_the_model_is_made_for_are_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    words = "serve llama-2-7b --cluster h100-sxm:1 --output 96 --rate 3 --requests 4 --json"
    assert main([*words.split(), "--prompt", "4001"]) == 0
    assert "4 of 4 requests pass the 4,096 tokens" in capsys.readouterr().out
    assert main([*words.split(), "--prompt", "4000"]) == 0
    assert "requests pass" not in capsys.readouterr().out


def test_a_placement_says_whom_it_leaves_out_and_what_the_cluster_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    load = "--prompt 100 --output 20 --requests 50 --slo ttft=200ms,tpot=20ms --json"
    both = f"serve llama-3.1-8b=9,qwen3-32b=1 --cluster h100-sxm:1 --search alpaserve --rate 5 {load}"
    assert main(both.split()) == 0
    assert "qwen3-32b: no place" in capsys.readouterr().out
    assert main(f"serve llama-3.1-8b --cluster h100-sxm:2 --search distserve --rate 90000 {load}".split()) == 0
    assert "the cluster has 2 GPUs: --rate 90000 takes " in capsys.readouterr().out
