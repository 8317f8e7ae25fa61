"""What the documents say is so: tables made from code are fresh, examples in them work, links lead somewhere."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from in_this_process import command_line

import windtunnel
from windtunnel.studies.training.plan import FIELDS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted({ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md"), *(ROOT / "validation").glob("*.md")})
README = (ROOT / "README.md").read_text(encoding="utf-8")


def script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", ["plan.md", "cluster.md"])
def test_tables_are_what_the_code_says(name: str) -> None:
    page = (DOCS / name).read_text(encoding="utf-8")
    assert script(DOCS / "update_tables.py").updated(name, page) == page, "run python docs/update_tables.py"


def test_every_plan_field_has_one_row() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", script(DOCS / "update_tables.py").fields(), re.MULTILINE)
    assert sorted(rows) == sorted(FIELDS)


def test_readme_shows_the_accuracy_page() -> None:
    history = (DOCS / "accuracy-history.md").read_text(encoding="utf-8")
    update = script(ROOT / "validation" / "update_readme.py")
    fresh = update.filled(README, "accuracy", update.accuracy_table(history))
    assert fresh == README, "run python validation/update_readme.py"
    training = (DOCS / "physics" / "training.md").read_text(encoding="utf-8")
    assert update.training_updated(training, history) == training, "run python validation/update_readme.py"


@pytest.mark.skipif(
    importlib.util.find_spec("aiconfigurator_core") is None, reason="README shows a prediction from measured kernels"
)
def test_readme_shows_what_the_command_prints() -> None:
    """To a percent: the last digit may differ between processors."""
    shown = re.search(r"<!-- prediction -->\n(.*?)<!-- /prediction -->", README, re.DOTALL)
    assert shown is not None
    printed = script(ROOT / "validation" / "update_readme.py").prediction()
    for figure in (r"step time +([\d.]+) s", r"MFU +([\d.]+) %", r"peak memory +([\d.]+) GiB", r"GEMM +([\d.]+) s"):
        old, new = (float(re.search(figure, text)[1]) for text in (shown[1], printed))  # type: ignore[index]
        assert old == pytest.approx(new, rel=0.01), "run python validation/update_readme.py"


def test_commands_of_the_readme_work(tmp_path: Path) -> None:
    pages = README + (DOCS / "verbs.md").read_text(encoding="utf-8")
    commands = [line for block in blocks(pages, "sh") for line in block.splitlines()]
    commands = [line for line in commands if re.match(r"windtunnel predict [^.]+ ", line) and ".yaml" not in line]
    assert len(commands) >= 3
    for line in commands:
        done = command_line(*shlex.split(line)[1:], "--no-advice", cwd=tmp_path)  # advice is shown by the test before
        assert done.returncode == 0, done.stderr


def test_python_of_the_readme_works(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks(README, "python")
    exec(code, {})
    assert float(capsys.readouterr().out.split()[0]) > 0


def test_plans_and_clusters_of_the_pages_can_be_read() -> None:
    plans = blocks((DOCS / "plan.md").read_text(encoding="utf-8"), "yaml")
    clusters = blocks((DOCS / "cluster.md").read_text(encoding="utf-8"), "yaml")
    assert plans
    assert clusters
    for text in plans:
        windtunnel.read_plan(yaml.safe_load(text))
    for text in clusters:
        windtunnel.parse_cluster(yaml.safe_load(text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in target:
            name, _, place = target.partition("#")
            to = page.parent / name if name else page
            assert to.exists(), target
            assert not place or to.suffix != ".md" or place in places(to), target


def places(page: Path) -> list[str]:
    """What a link may name behind #: the page's headings, as GitHub spells them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", head.strip().lower()).replace(" ", "-") for head in heads]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_table_has_a_line_of_its_own_below_its_head(page: Path) -> None:
    for before, line in pairwise(page.read_text(encoding="utf-8").splitlines()):
        if "| --- |" in line:
            assert re.fullmatch(r"[|: -]+", line), line
            assert before.startswith("|"), line


def test_names_of_the_reference_exist() -> None:
    named = re.findall(
        r"^::: ([\w.]+)\.(\w+)$", (DOCS / "reference" / "python.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(named) > 20
    for module, name in named:
        # A name may be a module that nothing has loaded yet.
        there = hasattr(importlib.import_module(module), name) or importlib.util.find_spec(f"{module}.{name}")
        assert there, f"{module}.{name}"


def test_every_page_is_on_the_site() -> None:
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in [*DOCS.glob("*.md"), *(DOCS / "measured").glob("*.md")]:
        assert str(page.relative_to(DOCS)) in site, f"{page.name} is not in mkdocs.yml"


def test_how_to_pages_are_no_diaries() -> None:
    """A page to do something by holds no date, and is read in a sitting; what was measured when is in docs/measured."""
    how_to = re.search(r"  - How to:\n(.*?)\n  - ", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.DOTALL)
    assert how_to is not None
    pages = re.findall(r": (\S+\.md)$", how_to[1], re.MULTILINE)
    assert len(pages) > 20
    for name in pages:
        text = (DOCS / name).read_text(encoding="utf-8")
        assert not re.findall(r"\b(20\d\d-\d\d-\d\d|\d{1,2} (?:November|December))\b", text), name
        assert len(text.split()) < 4000, name


def test_indexes_are_complete() -> None:
    for folder in (DOCS, DOCS / "physics", DOCS / "measured", DOCS / "decisions"):
        index = (folder / "README.md").read_text(encoding="utf-8")
        for page in folder.glob("*.md"):
            assert page.name == "README.md" or f"({page.name})" in index, (
                f"{page.name} is not in {folder.name}/README.md"
            )


def test_pages_named_in_messages_and_comments_exist() -> None:
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "validation").glob("*.py")]:
        for name in re.findall(r"docs/[\w/-]+\.md", path.read_text(encoding="utf-8")):
            assert (ROOT / name).is_file(), f"{path.name} names {name}"
