"""Each lab of docs/learn is what it says: the skeleton fails every test, the reference solution passes every one."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

LEARN = Path(__file__).parents[3] / "docs" / "learn"
SOLUTIONS = Path(__file__).parent / "solutions"
LABS = sorted(path for path in LEARN.iterdir() if re.match(r"\d\d-", path.name))
NAMES = [lab.name for lab in LABS]


def solution(lab: Path) -> Path:
    return SOLUTIONS / f"{lab.name[3:].replace('-', '_')}.py"


def graded(out: Path, lab: Path | None) -> dict[str, list[ElementTree.Element]]:
    """The results of each lab's tests, by its folder. Kernels run uncompiled: compiling takes longer than the tests."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "LAB"))}
    env |= {"NUMBA_DISABLE_JIT": "1"} | ({"LAB": str(lab)} if lab else {})
    off = [word for name in ("cacheprovider", "xdist", "hypothesispytest") for word in ("-p", f"no:{name}")]
    command = [sys.executable, "-m", "pytest", str(LEARN), *off, "--tb=line", f"--junitxml={out}"]
    done = subprocess.run(command, env=env, cwd=LEARN.parents[1], capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[str, list[ElementTree.Element]] = {}
    for case in ElementTree.parse(out).iter("testcase"):
        found.setdefault(case.get("classname", "").split(".")[-2], []).append(case)
    return found


@pytest.fixture(scope="module")
def of_skeletons(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[ElementTree.Element]]:
    return graded(tmp_path_factory.mktemp("skeletons") / "results.xml", None)


@pytest.fixture(scope="module")
def of_solutions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[ElementTree.Element]]:
    return graded(tmp_path_factory.mktemp("solutions") / "results.xml", SOLUTIONS)


def test_there_are_eight_labs_and_each_has_a_solution() -> None:
    assert len(LABS) == 8
    assert sorted(solution(lab).name for lab in LABS) == sorted(path.name for path in SOLUTIONS.glob("*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_a_skeleton_fails_every_test_because_it_is_empty(
    name: str, of_skeletons: dict[str, list[ElementTree.Element]]
) -> None:
    assert len(of_skeletons[name]) >= 8
    for case in of_skeletons[name]:
        failure = case.find("failure")
        assert failure is not None, case.get("name")
        assert "NotImplementedError" in failure.get("message", ""), case.get("name")


@pytest.mark.parametrize("name", NAMES)
def test_a_solution_passes_every_test(
    name: str,
    of_solutions: dict[str, list[ElementTree.Element]],
    of_skeletons: dict[str, list[ElementTree.Element]],
) -> None:
    assert [case.get("name") for case in of_solutions[name] if len(case)] == []
    assert len(of_solutions[name]) == len(of_skeletons[name])


def shape(path: Path) -> dict[str, list[str]]:
    """Public functions with their arguments, classes with their fields, in order."""
    found = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            found[node.name] = [ast.unparse(node.args), ast.unparse(node.returns) if node.returns else ""]
        elif isinstance(node, ast.ClassDef):
            found[node.name] = [ast.unparse(one) for one in node.body if isinstance(one, ast.AnnAssign)]
    return found


@pytest.mark.parametrize("lab", LABS, ids=NAMES)
def test_skeleton_and_solution_have_the_same_functions(lab: Path) -> None:
    assert shape(lab / "skeleton.py") == shape(solution(lab))


@pytest.mark.parametrize("lab", LABS, ids=NAMES)
def test_a_lab_has_all_its_parts(lab: Path) -> None:
    page = (lab / "README.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (.+)", page, re.MULTILINE)
    assert sections == ["The idea", "What to build", "Formulas", "Worked example", "Hints", "Go further"]
    assert page.count("<details ") == page.count("</details>") == 3
    further = page[page.index("## Go further") :]
    assert re.search(r"^    windtunnel \w+", further, re.MULTILINE), "windtunnel shows the same at scale"
    assert 30 <= len((lab / "skeleton.py").read_text(encoding="utf-8").splitlines()) <= 100
    assert f"({lab.name}/README.md)" in (LEARN / "README.md").read_text(encoding="utf-8")
