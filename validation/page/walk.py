"""Walk every page, every study's form and every study's answer in Chromium, light and dark, wide and narrow.

    python validation/page/walk.py --out shots [--themes 4] [--only VERB|pages]

A screenshot each to look at. Exit status 1 where axe-core (of axe-playwright-python) finds a serious or critical
violation, a page is wider than its window, a text is under 11 pixels, the tab key does not come to everything that can
be pressed, a script fails, or a study does. Answers that studies draw are looked at inside their frames.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

import axe_playwright_python
from playwright.sync_api import Browser, Page, sync_playwright

from windtunnel.faces.ui.jobs import VERBS

Scheme = Literal["light", "dark"]
THEMES: tuple[tuple[Scheme, int], ...] = (("light", 1300), ("dark", 400), ("dark", 1300), ("light", 400))
LARGE = "model=llama-3-70b&gpu=h100-sxm&gpus=512&tp=8&pp=4&global_batch=512&seq_len=8192"
FILES = {
    "study.yaml": "verb: predict\nfixed: {model: llama-3.2-1b, cluster: 'h100-sxm:8', plan.global_batch: 16,"
    " plan.seq_len: 512}\ngrid: {plan.tp: [1, 2, 4], plan.micro_batch: [1, 2]}\n",
    "jobs.csv": "job,submit_s,gpus,duration_s\n"
    + "".join(
        f"j{number},{number * 200},{2 ** (number % 5)},{900 + 700 * (number % 7)}\n" for number in range(60)
    ),
    "minutes.csv": "minute,added,removed\n0,12,0\n"
    + "".join(f"{at},{int(at % 18 == 0)},{int(at % 18 == 9)}\n" for at in range(1, 90)),
    "traffic.yaml": "link: 50Gb/s\njobs:\n"
    + "".join(f"  - {{job: {name}, period: 255ms, busy: 114ms}}\n" for name in "ab"),
    "coflows.txt": "3 2\n1 0 2 0 1 1 2:5.0\n2 10 1 1 1 2:3.0\n",
    "pool.yaml": "groups: {all: {cluster: 'h100-sxm:2'}}\nmodels:\n  small: {model: llama-3.1-8b,"
    " workload: {prompt: 64, output: 8, rate: 2, requests: 20}}\n",
}  # fmt: skip
# Words where the example names a file of the reader's that is not here, or takes minutes.
WORDS = {
    "plan": "llama-3.2-1b --cluster h100-sxm:8 --global-batch 16 --seq 1024",
    "survive": "--cluster h100-sxm:1024 --days 3 --seeds 20 --policy restart",
    "survive spot": "minutes.csv --model gpt-1.5b --policy parcae,varuna,on-demand",
    "serve spot": "llama-2-13b --cluster a100-80gb:48 --rate 2 --prompt 500 --output 100 --requests 200"
    " --machines machines.csv",
    "fleet": "jobs.csv --cluster h100-sxm:64 --policy fifo,tiresias",
    "fleet when": "jobs.csv --cluster h100-sxm:64 --job j30",
    "fleet pack": "",
    "serve pool": "pool.yaml",
    "fleet lint": "jobs.csv",
    "fleet share": "traffic.yaml",
    "fleet flows": "coflows.txt --policy sebf",
    "sweep": "study.yaml --jobs 1",
    "diagnose": "llama-3.2-1b --cluster h100-sxm:16 --tp 2 --global-batch 32 --seq 1024 --measured 1s",
    "check": "llama-3.2-1b --cluster h100-sxm:16 --tp 2 --global-batch 32 --seq 1024",
    "explain": "", "nic": "", "sweep table": "", "calibrate show": "", "validate": "",
}  # fmt: skip
FILES["machines.csv"] = "time_s,event,node\n" + "".join(f"0,add,n{at}\n" for at in range(6)) + "40,remove,n1\n"
SMALL = """() => [...document.querySelectorAll("body *")].filter((one) => one.getClientRects().length
  && [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())
  && parseFloat(getComputedStyle(one).fontSize) < 11).map((one) => one.textContent.trim().slice(0, 40))"""
REACHED = """() => { const one = document.activeElement; one.dataset.reached = 1; return one === document.body }"""
MISSED = """() => [...document.querySelectorAll("a[href], button, input, select, textarea, summary")].filter((one) =>
  one.checkVisibility({checkVisibilityCSS: true}) && !one.disabled && !one.dataset.reached && one.type !== "hidden")
  .map((one) => one.outerHTML.slice(0, 80))"""
TABS_MOST = 400


class Walk:
    """A browser on a server; `wrong` collects what is not as it should be."""

    def __init__(self, browser: Browser, address: str, out: Path) -> None:
        self.browser, self.address, self.out = browser, address, out
        self.axe = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
        self.wrong: list[str] = []

    def theme(self, scheme: Scheme, width: int, only: str) -> None:
        """Every page in one theme and width."""
        context = self.browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            bypass_csp=True,  # axe-core is evaluated
        )
        context.set_default_timeout(180_000)
        page, name = context.new_page(), f"{scheme}-{width}"
        page.on("pageerror", lambda error: self.wrong.append(f"{page.url}: {error}"))
        if only in ("", "pages"):
            self.pages(page, name)
        for verb in VERBS:
            if not only or only == verb:
                self.study(page, verb, name)
        context.close()

    def pages(self, page: Page, name: str) -> None:
        """All that is not a study."""
        page.goto(f"{self.address}runs")
        self.look(page, f"runs-first-{name}")
        for change in ("tp=4&", ""):
            page.goto(f"{self.address}?{LARGE}&{change}")
            page.get_by_role("button", name="Keep this run").click()
            page.wait_for_selector("#said a")
        self.look(page, f"ask-{name}")
        page.fill("#f-tp", "3")
        page.wait_for_selector("#e-tp:not(:empty)")
        self.look(page, f"mistake-{name}")
        page.goto(f"{self.address}vary?vary=slow&{LARGE}")
        page.wait_for_selector("table.points")
        self.look(page, f"what-if-{name}")
        page.goto(f"{self.address}runs")
        for box in page.query_selector_all("#chosen input")[:2]:
            box.check()
        self.look(page, f"runs-{name}")
        page.get_by_text("Compare the chosen").click()
        page.wait_for_selector("text=What was asked differently")
        self.look(page, f"compare-{name}")
        page.click("#content td a >> nth=0")
        page.wait_for_load_state()
        self.look(page, f"run-{name}")
        page.goto(f"{self.address}no-such-page")
        self.look(page, f"nothing-there-{name}")

    def study(self, page: Page, verb: str, name: str) -> None:
        """The form of a study as it begins, and the answer to it."""
        page.goto(f"{self.address}studies?verb={verb}")
        shot = f"{verb.replace(' ', '-')}-{name}"
        self.look(page, f"form-{shot}")
        words = WORDS.get(verb)
        if words == "":
            return
        if words is not None:
            page.goto(f"{self.address}studies?verb={verb}&words={words.replace(' ', '%20')}")
        page.get_by_role("button", name="Start", exact=True).click()
        page.wait_for_selector("#state .state.done, #state .state.failed, #wrong:not(:empty)")
        if page.locator("#state .state.done").count() == 0:
            self.wrong.append(f"{verb}: {page.locator('#state, #wrong').first.inner_text()}")
        page.wait_for_timeout(1000)
        self.look(page, f"answer-{shot}")

    def look(self, page: Page, name: str) -> None:
        """A screenshot, and what is wrong with the page and its frames."""
        page.wait_for_timeout(300)
        size = page.viewport_size
        assert size is not None
        tall = page.evaluate("document.documentElement.scrollHeight")  # a frame below the window is not painted
        page.set_viewport_size({"width": size["width"], "height": min(max(tall, size["height"]), 16_000)})
        page.screenshot(path=str(self.out / f"{name}.png"), full_page=True)
        page.set_viewport_size(size)
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            self.wrong.append(f"{name}: wider than the window")
        for frame in page.frames:
            frame.evaluate(self.axe)
            for found in frame.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]:
                where = [node["target"] for node in found["nodes"]][:3]
                print(f"{name}: {found['impact']}: {found['id']}: {where}", flush=True)
                if found["impact"] in ("serious", "critical"):
                    self.wrong.append(f"{name}: {found['id']}: {where}")
            small = frame.evaluate(SMALL)
            if small:
                self.wrong.append(f"{name}: under 11 pixels: {small[:3]}")
        ends = 0
        for _ in range(TABS_MOST):
            page.keyboard.press("Tab")
            ends += page.evaluate(REACHED)
            if ends == 2:  # the first round begins where the page was pressed last
                break
        missed = page.evaluate(MISSED)
        if missed:
            self.wrong.append(f"{name}: the tab key does not come to {len(missed)}: {missed[:3]}")


def main() -> int:
    """Walk, and say what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the screenshots")
    parser.add_argument("--themes", type=int, default=len(THEMES), help="how many of the themes and widths")
    parser.add_argument("--only", default="", help="this study alone, or `pages`")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder:
        uploads = Path(folder) / "runs" / "uploads"
        uploads.mkdir(parents=True)
        for name, text in FILES.items():
            (uploads / name).write_text(text)
        command = [sys.executable, "-m", "windtunnel", "ui", "--no-open", "--port", "0"]
        command += ["--runs", str(uploads.parent)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server, sync_playwright() as play:
            assert server.stderr is not None
            found = re.search(r"http://\S+/", server.stderr.readline())
            assert found is not None
            browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            walk = Walk(browser, found[0], asked.out)
            try:
                for scheme, width in THEMES[: asked.themes]:
                    walk.theme(scheme, width, asked.only)
            finally:
                browser.close()
                server.terminate()
                server.stderr.read()
    print("\n".join(f"WRONG {one}" for one in walk.wrong) or "nothing serious")
    return 1 if walk.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
