"""`windtunnel fleet flows` on a real command line: the columns others read, and mistakes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from subprocess import CompletedProcess

from in_this_process import command_line

TRACE = Path(__file__).parents[1] / "unit" / "studies" / "fleet" / "coflows.txt"


def windtunnel(*words: str) -> CompletedProcess[str]:
    return command_line("fleet", "flows", *words)


def test_ends_of_coflows_as_csv_and_aggregates_as_json(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    done = windtunnel(str(TRACE), "--policy", "sebf", "--rows", str(out), "--json")
    assert done.returncode == 0, done.stderr
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["coflow", "start_s", "finish_s"]
    assert rows[7]["coflow"] == "8"
    answer = json.loads(done.stdout)["policies"]["sebf"]
    cct = [float(row["finish_s"]) - float(row["start_s"]) for row in rows]
    assert abs(answer["cct_s"]["mean"] - sum(cct) / len(cct)) < 1e-6


def test_several_policies_side_by_side_and_a_mistake(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    done = windtunnel(str(TRACE), "--policy", "sebf,aalo,fai", "--rows", str(out))
    assert done.returncode == 0, done.stderr
    assert "d-clas" in done.stdout
    with out.open() as file:
        assert {row["policy"] for row in csv.DictReader(file)} == {"sebf", "d-clas", "fai"}
    gone = windtunnel(str(TRACE), "--clock", "coflowsim")
    assert (gone.returncode, "validation/oracles" in gone.stderr) == (2, True)
    bare = windtunnel(str(TRACE), "--port", "10")
    assert (bare.returncode, "say the unit" in bare.stderr) == (2, True)
    wrong = windtunnel(str(TRACE), "--policy", "sebv")
    assert wrong.returncode == 2
    assert wrong.stderr.count("\n") == 1
    assert "did you mean sebf" in wrong.stderr
