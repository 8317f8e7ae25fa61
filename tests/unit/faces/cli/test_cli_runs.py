"""`windtunnel runs`: lists, searches, tags and deletes run folders, and nothing else in that place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import windtunnel
from windtunnel.faces.cli.app import main
from windtunnel.views.text import duration


@pytest.fixture(scope="module")
def results() -> list[Any]:
    plan = {"tp": 2, "global_batch": 16, "seq_len": 2048}
    return [windtunnel.predict("llama-3-8b", f"{gpu}:8", plan) for gpu in ("h100-sxm", "b200")]


@pytest.fixture
def root(results: list[Any], tmp_path: Path) -> Path:
    for result in results:
        windtunnel.save_result(result, tmp_path / "runs")
    (tmp_path / "runs" / "mine").mkdir()
    return tmp_path / "runs"


def listed(capsys: pytest.CaptureFixture[str], root: Path, *words: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["runs", *words, "--json", "--out", str(root)]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["runs"]
    return found


def test_search_and_tags(results: list[Any], root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = listed(capsys, root)
    assert {run["name"] for run in both} == {result.content_hash for result in results}
    assert {run["step_time_s"] for run in both} == {result.step_time_s for result in results}
    (one,) = listed(capsys, root, "llama", "B200")
    assert one["name"] == results[1].content_hash
    assert listed(capsys, root, "llama", "mi300x") == []
    tagged = listed(capsys, root, "--tag", f"{one['name'][:8]}=best, kept")
    assert {run["name"]: run["tags"] for run in tagged}[one["name"]] == ["best", "kept"]
    assert [run["name"] for run in listed(capsys, root, "--tagged", "kept")] == [one["name"]]
    assert [run["name"] for run in listed(capsys, root, "best")] == [one["name"]]
    assert all(not run["tags"] for run in listed(capsys, root, "--tag", f"{one['name']}="))
    assert main(["runs", "--out", str(root)]) == 0
    screen = capsys.readouterr().out
    assert all(result.content_hash in screen for result in results)
    assert all(duration(result.step_time_ns) in screen for result in results)


def test_nothing_is_deleted_without_yes(results: list[Any], root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = results[0].content_hash
    assert main(["runs", "--delete", name, "--out", str(root)]) == 2
    assert "--yes" in capsys.readouterr().err
    assert (root / name).is_dir()
    assert main(["runs", "--delete", name, "--delete", "../mine", "--yes", "--out", str(root)]) == 2
    assert (root / name).is_dir(), "one wrong name: nothing is deleted"
    assert main(["runs", "--delete", name[:10], "--yes", "--out", str(root)]) == 0
    assert not (root / name).exists()
    assert (root / results[1].content_hash).is_dir()
    assert (root / "mine").is_dir()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--yes"], "first digits"),
        (["--tag", "abc"], "RUN=a,b"),
        (["--tag", "=a"], "first digits"),
        (["--delete", "", "--yes"], "first digits"),
        (["--delete", "abc", "--tagged", "x"], "runs list"),
    ],
)
def test_mistakes_are_one_line(words: list[str], said: str, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", *words, "--out", str(root)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_the_verbs_are_list_tag_and_delete(results: list[Any], root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = results[0].content_hash
    tagged = listed(capsys, root, "tag", f"{name[:8]}=kept")
    assert tagged == listed(capsys, root, "--tag", f"{name}=kept")
    assert listed(capsys, root, "list", "kept") == [run for run in tagged if run["name"] == name]
    assert main(["runs", "delete", name, "--runs", str(root)]) == 2
    assert main(["runs", "delete", name, "--yes", "--runs", str(root)]) == 0
    assert not (root / name).exists()
    other = results[1].content_hash
    assert main(["launch", other, "--runs", str(root), "--as", "megatron"]) == 0
    assert "--tensor-model-parallel-size 2" in capsys.readouterr().out


def test_an_empty_place_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--out", str(tmp_path / "none")]) == 0
    assert "no run in" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed_where_it_is_told(shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    script = tmp_path / "completion"
    assert main(["--install-completion", "--shell", shell, "--output", str(script)]) == 0
    text = script.read_text()
    assert all(word in text for word in ("predict", "whatif", "global-batch"))
