"""Reports of several studies in Chromium, judged by axe-core: contrast, names, headings; nothing clipped or small."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from in_this_process import command_line

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
axe = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")]
SERVED = "llama-3.2-1b --cluster h100-sxm:2 --prompt 64 --output 8 --requests 40 --slo ttft=1s,tpot=50ms"
QUESTIONS = {
    "predict": "predict llama-3.2-1b --cluster h100-sxm:16 --tp 2 --pp 2 --global-batch 32 --seq 1024 --no-save",
    "diagnose": "diagnose llama-3.2-1b --cluster h100-sxm:16 --tp 2 --global-batch 32 --seq 1024 --measured 1s",
    "fabric": "fabric --cluster h100-sxm:64 --collective all-reduce --bytes 64MiB..1GiB",
    "fleet": "fleet jobs.csv --cluster h100-sxm:8 --policy fifo,tiresias",
    "serve": f"serve {SERVED} --rate 4",
    "serve plan": f"serve plan {SERVED} --rate 4",
}
SMALL = """() => [...document.querySelectorAll("body *")].filter((one) => one.getClientRects().length
  && [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())
  && parseFloat(getComputedStyle(one).fontSize) < 11).map((one) => one.textContent.trim())"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("reports")
    rows = [f"j{number},{number * 60},{600 + 97 * number % 900},{1 + number % 4}" for number in range(20)]
    (folder / "jobs.csv").write_text("\n".join(["job,submit_s,duration_s,gpus", *rows]), encoding="utf-8")
    for name, question in QUESTIONS.items():
        done = command_line(*question.split(), "--report", f"{name}.html", cwd=folder)
        assert done.returncode == 0, done.stderr
    return sorted(folder.glob("*.html"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1300), ("dark", 400)])
def test_nothing_is_found_by_axe_and_nothing_is_clipped_or_small(
    scheme: str, width: int, reports: list[Path], browser: Any
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True)
    page, script = context.new_page(), (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
    assert len(reports) == len(QUESTIONS)
    for report in reports:
        page.goto(report.as_uri())
        page.evaluate(script)
        wrong = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        assert [(one["id"], one["nodes"][0]["html"]) for one in wrong] == [], report.name
        assert page.evaluate(SMALL) == [], report.name
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), (
            report.name
        )
    context.close()


def test_the_check_above_can_fail(browser: Any) -> None:
    page = browser.new_page()
    page.set_content("<p style='font-size: 9px; color: #ccc'>small and pale</p><button></button>")
    page.evaluate((Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8"))
    found = {one["id"] for one in page.evaluate("axe.run(document)")["violations"]}
    assert {"button-name", "color-contrast"} <= found
    assert re.search("small", " ".join(page.evaluate(SMALL)))
