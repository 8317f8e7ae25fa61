"""The local page in a real Chromium: ask, what if, keep, compare, a study; light and dark, wide and narrow."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from windtunnel.faces.report.draw.page import page_of
from windtunnel.views import Column, Document, Table

pytest.importorskip("starlette")
sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")]
BREAKDOWN = "#where-the-step-goes-mean-over-all-gpus"
HEAT = "canvas.map[aria-label^='Every rank by host']"
QUESTION = "model=llama-3.2-1b&gpu=h100-sxm&gpus=16&tp=2&pp=2&global_batch=32&seq_len=1024"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("page")
    command = [sys.executable, "-m", "windtunnel", "ui", "--no-open", "--port", "0", "--runs", str(folder / "runs")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder) as server:
        assert server.stderr is not None
        match = re.search(r"http://\S+/", server.stderr.readline())
        assert match is not None
        yield match[0]
        server.terminate()
        server.stderr.read()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


LOOKS = {"light and wide": ("light", 1400), "dark and narrow": ("dark", 400)}
# What does not look at the page's shape is tried in one of them.
one_look = pytest.mark.parametrize("page", ["dark and narrow"], indirect=True)


@pytest.fixture(params=LOOKS)
def page(request: pytest.FixtureRequest, browser: Any) -> Iterator[Any]:
    scheme, width = LOOKS[request.param]
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    context.set_default_timeout(60_000)
    opened, wrong = context.new_page(), []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    # htmx says on the console when a newer question takes the place of one that is still being answered.
    opened.on(
        "console",
        lambda said: wrong.append(said.text) if said.type == "error" and not said.text.startswith("htmx:") else None,
    )
    yield opened
    context.close()
    assert wrong == []


def looks_right(page: Any) -> None:
    """Nothing wider than the window, and no heading of a table broken within its words."""
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    broken = """() => [...document.querySelectorAll('th')].filter((cell) => {
      const text = document.createRange();
      text.selectNodeContents(cell);
      const words = cell.innerText.split(/[\\s-]+/).length, line = parseFloat(getComputedStyle(cell).fontSize) * 1.7;
      return text.getBoundingClientRect().height > line * words + 1;
    }).map((cell) => cell.innerText)"""
    if "/runs/" not in page.url:  # the table of a spec breaks its long keys
        assert page.evaluate(broken) == []


def test_a_question_is_asked_changed_kept_and_compared(page: Any, address: str) -> None:
    page.goto(f"{address}?{QUESTION}")
    page.wait_for_selector(BREAKDOWN)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    first = page.text_content(".tile .big")
    page.fill("#f-tp", "3")
    page.wait_for_selector("#e-tp:not(:empty)")
    assert "does not divide" in page.inner_text("#e-tp")
    assert page.get_attribute("#f-tp", "aria-invalid") == "true"
    assert page.text_content(".tile .big") == first  # the last answer stays
    page.fill("#f-tp", "1")
    sync_api.expect(page.locator(".tile .big").first).not_to_have_text(first, timeout=60_000)
    assert page.inner_text("#e-tp") == ""
    page.wait_for_url("**tp=1&**")
    assert page.get_attribute("#f-cp", "placeholder") == "1"
    assert int(page.get_attribute("#timeline canvas", "data-drawn")) > 0  # the report's own script drew its timeline
    names = []
    for tp in ("1", "2"):
        page.fill("#f-tp", tp)
        page.wait_for_url(f"**tp={tp}&**")
        page.click("text=Keep this run")
        page.wait_for_selector(f"#said a:not(:text('{names[-1]}'))" if names else "#said a")
        names.append(page.inner_text("#said a"))
    page.goto(f"{address}runs")
    for name in names:
        page.check(f"input[value='{name}']")
    page.click("text=Compare the chosen")
    page.wait_for_selector("text=What was asked differently")
    assert page.locator("tr", has_text="plan.tp").count() == 1
    assert re.search(r"B takes .* time per step than A", page.inner_text("main"))
    looks_right(page)
    page.click(f"text={names[0]} >> nth=0")  # the kept run itself
    page.wait_for_selector(BREAKDOWN)
    looks_right(page)
    page.goto(f"{address}runs")
    looks_right(page)


@one_look
def test_heat_maps_are_drawn_again_with_each_answer(page: Any, address: str) -> None:
    """The maps of the answer before have the same names: nothing of theirs may be put on the new ones."""
    page.goto(f"{address}?{QUESTION}&slow=gpu%3D1:1.2")
    for slow in ("gpu=0:1.2", "gpu=1:1.5"):
        page.wait_for_selector(f"{HEAT}[data-drawn]")
        page.locator(HEAT).evaluate("map => { map.dataset.earlier = 1 }")
        page.evaluate("document.getElementById('f-slow').closest('details')?.setAttribute('open', '')")
        page.fill("#f-slow", slow)
        page.wait_for_selector(f"{HEAT}[data-drawn]:not([data-earlier])")
        page.wait_for_function("!document.querySelector('.htmx-settling, .htmx-swapping')")
        painted = page.locator(HEAT).evaluate(
            """map => map.getContext("2d").getImageData(0, 0, map.width, map.height).data.some((value) => value > 0)"""
        )
        assert painted, slow


def test_one_field_is_varied_and_the_question_carried_over(page: Any, address: str) -> None:
    page.goto(f"{address}vary?{QUESTION}")
    page.wait_for_selector("table.points")
    assert page.locator("table.points tbody tr").count() == 7
    assert page.inner_text("tr.now th").startswith("2")
    looks_right(page)
    page.select_option("#f-vary", "slow")
    page.wait_for_selector("h2:text('Over one slow GPU')")
    costs = page.locator("tbody tr", has_text=":1.5").locator("td").nth(1).inner_text()
    assert costs.startswith("+"), costs  # against the step without it
    page.select_option("#f-vary", "micro_batch")
    page.wait_for_selector("h2:text('Over micro batch')")
    page.click("text=Ask about this one")
    page.wait_for_selector(BREAKDOWN)
    assert page.input_value("#f-pp") == "2"


def test_the_best_plan_is_searched_for_and_looked_at(page: Any, address: str) -> None:
    page.goto(f"{address}studies?verb=plan")
    fixed = {
        "tp": "2",
        "pp": "1",
        "cp": "1",
        "zero_stage": "1",
        "recompute": "none",
        "global_batch": "8",
        "seq_len": "512",
    }
    for name, value in fixed.items():  # a space that is soon searched
        page.fill(f"[id='f-plan.{name}']", value)
    page.fill("[id='f-model.base']", "llama-3.2-1b")
    page.fill("[id='f-cluster.base']", "h100-sxm:4")
    page.click("#study button")
    page.wait_for_url("**/studies/2*")
    page.wait_for_selector(".state.done, .state.failed")
    assert page.inner_text(".state") == "done", page.inner_text("#state")
    page.wait_for_selector("#cloud-canvas[data-drawn]")  # the plans that were replayed, as they came
    looks_right(page)
    step = page.locator("#best-plans tbody tr").first.locator("td:has-text(' ms')").first.inner_text()
    page.click("#best-plans tbody a >> nth=0")
    page.wait_for_selector(BREAKDOWN)
    inner_text = page.inner_text(".tile .big >> nth=0")
    assert in_seconds(step) == pytest.approx(in_seconds(inner_text), rel=1e-3), (step, inner_text)


def in_seconds(text: str) -> float:
    """`8.265 s`, `12.3ms` as seconds."""
    match = re.fullmatch(r"([\d.,]+)\s*(s|ms|us)", text.strip())
    assert match is not None, text
    return float(match[1].replace(",", "")) * {"s": 1.0, "ms": 1e-3, "us": 1e-6}[match[2]]


def test_a_study_is_started_watched_and_removed(page: Any, address: str) -> None:
    page.goto(f"{address}studies")
    page.select_option("#verb", "serve")
    page.wait_for_url("**/studies?verb=serve")
    rate, slots = page.locator("[id='f-load.rate']"), page.locator("[id='f-load.concurrency']")
    for kind, shown, hidden in (("closed", slots, rate), ("open", rate, slots)):  # fields of the member that is chosen
        page.select_option("[id='f-load.kind']", kind)
        sync_api.expect(shown).to_be_visible()
        sync_api.expect(hidden).to_be_hidden()
    looks_right(page)
    page.select_option("#verb", "survive")
    page.wait_for_url("**/studies?verb=survive")
    page.click("summary:has-text('rarer')")
    for name, value in {
        "model.base": "llama-3-8b",
        "cluster.base": "h100-sxm:1024",
        "days": "3",
        "seeds": "20",
        "policy": "restart",
    }.items():
        page.fill(f"[id='f-{name}']", value)
    page.click("#study button")
    page.wait_for_url("**/studies/2*")
    page.wait_for_selector(".state.done, .state.failed")
    assert page.inner_text(".state") == "done", page.inner_text("#state")
    page.wait_for_selector("iframe.drawn")
    page.goto(f"{address}studies")
    left = page.locator("table.rows tbody tr").count()
    page.click("button:text('Remove')")
    sync_api.expect(page.locator("table.rows tbody tr")).to_have_count(left - 1)


@one_look
def test_keys_reach_every_page(page: Any, address: str) -> None:
    page.goto(f"{address}runs")
    page.keyboard.press("4")
    page.wait_for_url("**/studies")
    page.keyboard.press("3")
    page.wait_for_url("**/runs")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"


@one_look
def test_a_column_of_dates_sorts_by_the_day(page: Any) -> None:
    days = ["2026-11-30 04:28", "2026-02-03 10:00", "2025-12-31 09:00", "2026-10-01 00:00"]
    table = Table("Runs", [Column("run"), Column("saved"), Column("step", "s")], [("a", day, 1.0) for day in days])
    page.set_content(page_of(Document("runs", "Runs", [table])))
    page.get_by_role("button", name="saved", exact=True).click()
    assert page.locator("tbody tr td:nth-child(2)").all_text_contents() == sorted(days)
