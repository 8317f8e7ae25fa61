from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import windtunnel
from windtunnel.errors import InputFileError, UserError
from windtunnel.faces.cli.app import main
from windtunnel.faces.report.comparison.compare import changed
from windtunnel.faces.report.prediction.spec_words import disturbing
from windtunnel.physics.step.result import Result
from windtunnel.questions import read
from windtunnel.studies.whatif import changed_question, question_of_result

PLAN = {"tp": 2, "pp": 2, "global_batch": 16, "seq_len": 2048, "overlap_tp": False}
SLOW = ("gpu=3:1.3", "link=node1.nic2:0.5")


def ask(**disturbances: Any) -> Result:
    return windtunnel.predict("llama-3-8b", "h100-sxm:16", PLAN, **disturbances)


@pytest.fixture(scope="module")
def even() -> Result:
    return ask()


@pytest.fixture(scope="module")
def slow() -> Result:
    return ask(slow=SLOW, jitter="2%", samples=10, seed=5)


@pytest.fixture
def run(slow: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return str(windtunnel.save_result(slow, tmp_path / "saved"))


def whatif(*words: str) -> int:
    return main(["whatif", *words])


def saved(capsys: pytest.CaptureFixture[str]) -> Result:
    """The answer whose folder the last command wrote."""
    return windtunnel.load_result(capsys.readouterr().err.splitlines()[-1].removeprefix("wrote "))


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert whatif(*words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return line


def test_mending_everything_is_the_undisturbed_prediction(
    run: str, even: Result, capsys: pytest.CaptureFixture[str]
) -> None:
    assert whatif(run, "--set", "slow.none") == 0
    assert saved(capsys).to_json() == even.to_json()


def test_mending_one_thing_leaves_the_others(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert whatif(run, "--set", f"slow.without={SLOW[0]}") == 0
    expected = ask(slow=SLOW[1:], jitter="2%", samples=10, seed=5)
    assert saved(capsys).to_json() == expected.to_json()


@pytest.mark.parametrize("name", ["jitter", "jitter 2%"])
def test_jitter_is_mended_by_the_name_that_results_print(
    run: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert whatif(run, "--set", f"slow.without={name}") == 0
    assert saved(capsys).step_time_ns == ask(slow=SLOW).step_time_ns


def test_what_is_added_is_added_last(run: str, slow: Result) -> None:
    question = changed_question(question_of_result(slow, run), ["slow.without=gpu=3:1.3"], ["gpu=1:2"])
    assert question.scenario.slow == (SLOW[1], "gpu=1:2")


def test_cluster_plan_and_model_can_be_changed_at_once(
    even: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = str(windtunnel.save_result(even, tmp_path))
    sets = ["cluster.nic=800Gb/s", "plan.tp=1", "model.layers=8"]
    assert whatif(run, *(word for text in sets for word in ("--set", text))) == 0
    after = saved(capsys)
    assert after.spec["cluster"]["scale_out"]["bandwidth_bytes_per_s"] == 100e9
    assert after.spec["plan"]["tp"] == 1
    assert after.spec["plan"]["overlap_tp"] is False
    assert after.step_time_ns < even.step_time_ns


def test_the_document_says_what_was_changed(run: str, slow: Result, capsys: pytest.CaptureFixture[str]) -> None:
    assert whatif(run, "--set", "cluster.nic=800Gb/s", "--set", "slow.none", "--json", "--no-save") == 0
    out, err = capsys.readouterr()
    assert err == ""
    document = json.loads(out)
    assert document["a"]["content_hash"] == slow.content_hash
    assert sum(document["causes_ns"].values()) == document["step_ns"]
    differences = {one["field"]: (one["a"], one["b"]) for one in document["spec"]}
    assert differences["slow"] == (list(SLOW), None)
    assert differences["jitter"] == ("0.02", None)
    assert differences["cluster.scale_out.bandwidth_bytes_per_s"] == (50e9, 100e9)
    assert not any("sources" in field or field.endswith("scale_out.name") for field in differences)


def test_bands_do_not_cast_doubt_on_mending(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert whatif(run, "--set", "slow.none", "--no-save") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "not certain" not in text
    assert "slow gpu=3:1.3, link=node1.nic2:0.5 → none" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "add --set"),
        (("--set", "slow.without=gpu=4:1.3"), "gpu=3:1.3, link=node1.nic2:0.5, jitter"),
        (("--set", "slow.without=lengths"), "jitter"),
        (("--set", "slow.gpu=3"), "slow.none"),
        (("--set", "slow"), "slow.none"),
        (("--set", "depth=4"), "is not known"),
        (("--set", "cluster.nick=4"), "cluster.nick"),
        (("--set", "model.depth=4"), "layers"),
        (("--set", "plan.tp=3"), "tp"),
        (("--slow", "gpu=16:2"), "0 to 15"),
    ],
)
def test_a_setting_that_means_nothing_is_one_message(
    run: str, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refusal(capsys, run, *words)


def test_a_run_that_is_not_there(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no such run" in refusal(capsys, "abcdef", "--set", "slow.none")


def test_a_run_of_a_mapping_asks_for_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = {
        "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 8,
        "num_key_value_heads": 8, "num_hidden_layers": 4, "vocab_size": 32000, "max_position_embeddings": 4096,
    }  # fmt: skip
    run = str(windtunnel.save_result(windtunnel.predict(config, "h100-sxm:16", PLAN), tmp_path))
    assert "was predicted from llama.json, which is not in" in refusal(capsys, run, "--set", "plan.tp=1")
    (tmp_path / "llama.json").write_text(json.dumps(config))
    assert whatif(run, "--set", "plan.tp=1", "--no-save") == 0


def test_files_are_looked_for_where_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "lengths.csv").write_text("length,count\n512,3\n2048,1\n")
    monkeypatch.chdir(tmp_path / "here")
    run = str(windtunnel.save_result(ask(lengths="lengths.csv", samples=5), tmp_path))
    assert whatif(run, "--set", "plan.micro_batch=2", "--no-save") == 0
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert "lengths.csv" in refusal(capsys, run, "--set", "plan.micro_batch=2")


@pytest.mark.parametrize("command", ["", "rm -rf /", "windtunnel predict", "windtunnel predict x --tpp 3", "'"])
def test_a_command_that_is_none_is_refused(even: Result, command: str) -> None:
    with pytest.raises(UserError, match="predict it again"):
        question_of_result(dataclasses.replace(even, question={}, reproduce=command), "run")


def test_asked_disturbances_are_read_from_the_command(slow: Result, even: Result) -> None:
    found = {"slow": list(SLOW), "jitter": "0.02", "samples": "10", "seed": "5"}
    for result in (slow, dataclasses.replace(slow, question={})):  # of before, the command says it
        assert disturbing(result) == found
    assert disturbing(even) == {}
    assert disturbing(dataclasses.replace(even, question={}, reproduce="a 'b")) == {}


def test_an_infeasible_answer_says_by_how_much(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert whatif(run, "--set", "cluster.gpu.memory=8GiB", "--no-save") == 0
    assert "GiB too much on stage" in " ".join(capsys.readouterr().out.split())


def test_a_captured_folder_is_looked_for_without_its_hash(even: Result, tmp_path: Path) -> None:
    command = f"windtunnel predict {tmp_path / 'job'}@0123456789ab --cluster h100-sxm:2"
    captured = dataclasses.replace(even, question={}, reproduce=command)
    with pytest.raises(InputFileError, match=r"was predicted from .*/job, which is not in"):
        question_of_result(captured, "it")
    (tmp_path / "job").mkdir()
    assert question_of_result(captured, "it").model.base == f"{tmp_path / 'job'}@0123456789ab"


def test_a_run_of_another_version_is_told_in_the_answer(even: Result, slow: Result) -> None:
    asked = read({"question": "whatif", "run": "saved", "set": ["slow.none"]})
    old = dataclasses.replace(slow, spec={**slow.spec, "version": "0.0.1"})
    assert "made by version 0.0.1" in changed(asked, old, even).warnings[0]
    assert not changed(asked, slow, even).warnings
