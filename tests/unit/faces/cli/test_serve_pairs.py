"""Every pair of the flags that `serve` had is accepted or refused by the verbs of today as it was then.

`serve_pairs.json` says what the command line of 51 flags did with each pair, made a whole question: "." answered, "m" a
flag without a meaning there, "n" a flag that needs another, "c" a contradiction, "x" any other mistake. A row per flag,
a letter per flag after it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import pytest
from cyclopts import CycloptsError

from windtunnel.errors import UserError
from windtunnel.faces.cli.verbs import command_of
from windtunnel.questions import run
from windtunnel.questions.asked.serve.listen import ServeListen
from windtunnel.questions.former import renewed
from windtunnel.questions.old import question_of_command
from windtunnel.studies.serving import study

RECORDED = Path(__file__).with_name("serve_pairs.json")
SWITCHES = ("goodput", "json", "prefix_caching", "chunked_prefill")
VALUES = {
    "cluster": "h100-sxm:16", "engine": "sglang-0.5.9", "tp": "2", "pp": "2", "dp": "2", "ep": "1", "replicas": "2",
    "router": "round-robin", "weights": "fp8", "expert_weights": "fp8", "kv": "fp8", "max_num_seqs": "64",
    "max_num_batched_tokens": "4096", "num_gpu_blocks": "900", "block_size": "32", "gpu_memory_utilization": "0.8",
    "prefix_caching": "", "chunked_prefill": "", "workload": "requests.csv", "requests": "60",
    "requests_out": "stamps.csv", "rate": "3", "cv": "2", "prompt": "32", "output": "9", "length_ratio": "0.5",
    "concurrency": "4", "waves": "3", "slo": "ttft=30ms,tpot=9ms", "goodput": "", "attain": "0.5", "prefill": "1xtp1",
    "decode": "1xtp1", "search": "distserve", "kernels": "kernels_attention.csv", "speculative_tokens": "2",
    "acceptance": "0.5",
    "gpu_hour": "2", "seed": "3", "listen": "127.0.0.1:0", "speed": "2", "lose": "0@30s+10s", "max_waiting": "9",
    "record": "record.csv", "real": "tiny-llama", "spot": "machines.csv", "spot_policy": "restart", "notice": "5s",
    "report": "page.html", "trace": "replica.json", "json": "",
}  # fmt: skip
OUTPUTS = {"requests_out", "report", "trace", "json"}
BESIDE = {  # what a flag means something beside
    "waves": ("concurrency",), "acceptance": ("speculative_tokens",), "goodput": ("slo",), "search": ("slo", "rate"),
    "prefill": ("decode",), "decode": ("prefill",), "speed": ("listen",), "lose": ("listen",), "cv": ("rate",),
    "max_waiting": ("listen",), "record": ("listen",), "spot_policy": ("spot",), "notice": ("spot",),
}  # fmt: skip


def questions() -> Iterator[tuple[str, str, list[str]]]:
    """(flag, flag, words of the old command line)."""
    for first, second in combinations(VALUES, 2):
        yield first, second, _words(first, second)


def _words(*pair: str) -> list[str]:
    given = dict.fromkeys(pair)
    if "attain" in given and "search" not in given:
        given["goodput"] = None
    for flag in list(given):
        for other in BESIDE.get(flag, ()):
            given.setdefault(other)
            if other == "goodput":
                given.setdefault("slo")
    if "goodput" in given:
        given.setdefault("slo")
    if "real" not in given:
        given.setdefault("cluster")
        if not {"listen", "workload"} & set(given):
            for flag in ("prompt", "output", "requests"):
                given.setdefault(flag)
            if not {"rate", "concurrency"} & set(given):
                given["rate"] = None
    words = [] if "real" in given else ["llama-3.1-8b"]
    for flag in given:
        words.append("--" + flag.replace("_", "-"))
        if flag not in SWITCHES:
            words.append(VALUES[flag])
    return words


def recorded() -> dict[tuple[str, str], str]:
    """What the old command line did with each pair."""
    rows: dict[str, str] = json.loads(RECORDED.read_text())
    flags = list(VALUES)
    return {
        (flag, other): letter
        for at, flag in enumerate(flags)
        for other, letter in zip(flags[at + 1 :], rows.get(flag, ""), strict=True)
    }


def write_files(folder: Path) -> None:
    """The files that the questions name."""
    (folder / "requests.csv").write_text(
        "input_tokens,output_tokens,arrival_ns\n" + "".join(f"64,8,{at * 400_000_000}\n" for at in range(12))
    )
    (folder / "machines.csv").write_text("time_s,event,node\n" + "0,add,a\n0,add,b\n4,remove,a\n9,add,c\n")
    lines = ["gpu,model,tp,prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"]
    for tp in (1, 2):
        for size in (16, 256, 2048):
            lines += [f"H100-SXM,Llama-3.1-8B,{tp},{size},{past},0,0,{5 + size * 0.02}" for past in (0, 512)]
            lines += [f"H100-SXM,Llama-3.1-8B,{tp},0,0,{n},{size},{5 + n * size * 0.01}" for n in (1, 64)]
    (folder / "kernels_attention.csv").write_text("\n".join(lines) + "\n")
    rows = ["gpu,model,tp,table,layer,size,time_us,activated_experts"]
    for tp in (1, 2):
        for size in (1, 64, 2048):
            for layer in ("qkv_proj", "layernorm"):
                rows.append(f"H100-SXM,Llama-3.1-8B,{tp},dense,{layer},{size},{20 + size * 0.1},")
            rows.append(f"H100-SXM,Llama-3.1-8B,{tp},per_sequence,lm_head,{size},300,")
    (folder / "kernels_layers.csv").write_text("\n".join(rows) + "\n")


WORK = (  # where a study begins what takes time
    "windtunnel.studies.serving.study._runner",
    "windtunnel.studies.serving.study.priced",
    "windtunnel.studies.serving.study.pools_in_words",
    "windtunnel.studies.serving.spot.study.serve_on_spot",
    "windtunnel.studies.serving.placement.answer.place_phases",
    "windtunnel.real.serving.compare.answer",
)


DRAWN = {"search", "real", "spot", "spot_policy", "notice"}  # their answers have a page, which they had not


class AcceptedError(Exception):
    """The question came to the work of its study."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)

    def accepted(*_: Any, **__: Any) -> None:
        raise AcceptedError

    for name in WORK:
        monkeypatch.setattr(name, accepted)
    return tmp_path


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.long)])
def test_all_pairs_are_judged_as_they_were(folder: Path, every: int) -> None:
    before, app = recorded(), command_of("serve")
    assert len(before) == 1275
    differ = []
    for first, second, words in islice(questions(), 0, None, every):
        asked = renewed(["serve", *words])
        try:
            if {first, second} & OUTPUTS:  # no part of a question
                app(asked[1:], exit_on_error=False, print_error=False, result_action="return_value")
            else:
                question = question_of_command(shlex.join(["windtunnel", *asked]))
                study.listen(question, lambda where, token: None) if isinstance(question, ServeListen) else run(
                    question
                )
            error = None
        except AcceptedError:
            error = None
        except (UserError, CycloptsError) as refused:
            error = str(refused)
        drawn = error is None and {first, second} & DRAWN and {first, second} & {"report"}
        if (before[first, second] == ".") != (error is None) and not drawn:
            differ.append((first, second, before[first, second], error))
    assert differ == []
