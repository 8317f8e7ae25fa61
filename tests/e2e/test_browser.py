"""The report in a real Chromium: it opens, complains about nothing, and draws what the Result holds."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from windtunnel.faces.report.documents import write_report as write_html

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; CI installs one (apt-get install chromium)"),
]


def _samples() -> ModuleType:
    path = Path(__file__).parents[1] / "unit" / "faces" / "report" / "sample_result.py"
    spec = importlib.util.spec_from_file_location("sample_result_for_browser", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _chromium(tmp_path: Path, page: Path, *options: str) -> tuple[str, list[str]]:
    """(DOM after the script ran, lines that the page wrote to the console)."""
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
        f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--virtual-time-budget=2000",
        "--window-size=1400,2200", *options, "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.parametrize("name", ["sample", "disturbed", "infeasible", "bare", "hostile"])
def test_the_report_opens_and_draws_everything(name: str, tmp_path: Path) -> None:
    result = getattr(_samples(), name)()
    page = tmp_path / "report.html"
    write_html(result, page)
    dom, complaints = _chromium(tmp_path, page)
    assert complaints == []
    assert dom.count("<figure") == len([stage for stage in result.memory if stage.timeline])
    if result.excerpt:
        canvas = re.search(r'id="timeline".*?(<canvas[^>]*>)', dom, re.DOTALL)
        assert canvas is not None
        assert f'data-bars="{len(result.excerpt)}"' in canvas[1]
        assert f'data-drawn="{len(result.excerpt)}"' in canvas[1]
    else:
        assert "<canvas" not in dom
    maps = r'<canvas class="map"[^>]*aria-label="([^:]*): [^>]*data-drawn="(\d+)" data-marked="(\d+)"'
    cells = {"Every rank by host": ("8192", "1"), "Every rank by replica and stage": (str(16 * 32), "1")}
    assert {name: found for name, *found in re.findall(maps, dom)} == (
        {name: list(found) for name, found in cells.items()} if result.disturbed else {}
    )
    step, stages = (
        re.search(f'<section class="card" data-view="bars" id="{name}">.*?</section>', dom, re.DOTALL)
        for name in ("where-the-step-goes-mean-over-all-gpus", "the-step-by-pipeline-stage")
    )
    by_stage = sum(len(stage.breakdown_ns) for stage in result.stages)
    for section, shown in ((step, len(result.breakdown_ns)), (stages, by_stage)):
        assert len(re.findall(r'class="seg ', section[0] if section else "")) == shown


def test_the_check_above_can_fail(tmp_path: Path) -> None:
    page = tmp_path / "broken.html"
    page.write_text("<!doctype html><script>nothing.there()</script>", encoding="utf-8")
    assert _chromium(tmp_path, page)[1] != []
