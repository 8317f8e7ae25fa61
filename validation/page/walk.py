"""Walk the page in Chromium, light and dark, wide and narrow: screenshots to look at, and what axe-core says of each.

    npm pack axe-core && tar xzf axe-core-*.tgz
    python validation/page/walk.py --axe package/axe.min.js --out shots [--themes 4]

Exit status 1 where axe-core finds a serious or critical violation, a page is wider than its window, or a script fails.
The reports that studies draw are looked at inside their frames.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

THEMES = (("light", 1200), ("dark", 400), ("dark", 1200), ("light", 400))
STUDY = """verb: predict
fixed: {model: llama-3.2-1b, cluster: 'h100-sxm:8', plan.global_batch: 16, plan.seq_len: 512}
grid: {plan.tp: [1, 2, 4], plan.micro_batch: [1, 2]}
"""
JOBS = "job,submit_s,gpus,duration_s\n" + "".join(
    f"j{number},{number * 200},{2 ** (number % 5)},{900 + 700 * (number % 7)}\n" for number in range(60)
)
STUDIES = {
    "plan": "llama-3.2-1b --cluster h100-sxm:4 --global-batch 8 --seq 512 --tp 2 --pp 1 --cp 1 --recompute none",
    "sweep": "study.yaml --jobs 1",
    "serve": "llama-3.1-8b --cluster h100-sxm:1 --engine vllm --prompt 1000 --output 200 --rate 4",
    "fleet": "jobs.csv --cluster h100-sxm:64 --policy fifo,tiresias",
    "survive": "--cluster h100-sxm:1024 --days 3 --seeds 20 --policy restart",
}


class Walk:
    """One browser on one server; `wrong` collects what is not as it should be."""

    def __init__(self, browser: Any, address: str, axe: str, out: Path) -> None:
        self.browser, self.address, self.axe, self.out = browser, address, axe, out
        self.wrong: list[str] = []

    def theme(self, scheme: str, width: int) -> None:
        """Every page in one theme and width."""
        size = {"width": width, "height": 900}
        context = self.browser.new_context(viewport=size, color_scheme=scheme, bypass_csp=True)  # for axe-core's eval
        context.set_default_timeout(180_000)
        page, name = context.new_page(), f"{scheme}-{width}"
        page.on("pageerror", lambda error: self.wrong.append(f"{page.url}: {error}"))
        page.goto(f"{self.address}runs")
        self.look(page, f"runs-empty-{name}")
        for tp in ("4", "8"):
            page.goto(
                f"{self.address}?model=llama-3-70b&gpu=h100-sxm&gpus=512&tp={tp}&pp=4&global_batch=512&seq_len=8192"
            )
            page.wait_for_selector("#breakdown")
            page.click("text=Keep this run")
            page.wait_for_selector("#said a")
        page.wait_for_selector("table.advice")
        self.look(page, f"ask-{name}")
        page.fill("#f-tp", "3")
        page.wait_for_selector("#e-tp:not(:empty)")
        self.look(page, f"mistake-{name}")
        page.goto(
            f"{self.address}vary?vary=slow&model=llama-3-70b&gpu=h100-sxm&gpus=512&tp=8&pp=4&global_batch=512&seq_len=8192"
        )
        page.wait_for_selector("table.points")
        self.look(page, f"what-if-{name}")
        page.goto(f"{self.address}runs")
        for box in page.query_selector_all("#chosen input")[:2]:
            box.check()
        self.look(page, f"runs-{name}")
        page.click("text=Compare the chosen")
        page.wait_for_selector("text=What was asked differently")
        self.look(page, f"compare-{name}")
        page.click("thead a >> nth=0")
        page.wait_for_selector("#breakdown")
        self.look(page, f"run-{name}")
        for verb, words in STUDIES.items():
            page.goto(f"{self.address}studies")
            page.select_option("#verb", verb)
            page.fill("#words", words)
            page.click("#study button")
            page.wait_for_url("**/studies/2*")
            page.wait_for_selector(".state.done, .state.failed")
            if page.inner_text(".state") != "done":
                self.wrong.append(f"{verb}: {page.inner_text('#state')}")
            page.wait_for_timeout(1000)
            self.look(page, f"{verb}-{name}")
        page.goto(f"{self.address}studies")
        self.look(page, f"studies-{name}")
        context.close()

    def look(self, page: Any, name: str) -> None:
        """A screenshot, and what axe-core says of the page and its frames."""
        page.wait_for_timeout(300)
        page.screenshot(path=str(self.out / f"{name}.png"), full_page=True)
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            self.wrong.append(f"{name}: wider than the window")
        for frame in page.frames:
            frame.evaluate(self.axe)
            for one in frame.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]:
                said = f"{name}: {one['impact']}: {one['id']}: {[node['target'] for node in one['nodes']][:3]}"
                print(said)
                self.wrong += [said] if one["impact"] in ("serious", "critical") else []


def main() -> int:
    """Walk, and say what is wrong."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axe", type=Path, required=True, help="axe.min.js of the npm package axe-core")
    parser.add_argument("--out", type=Path, required=True, help="folder of the screenshots")
    parser.add_argument("--themes", type=int, default=len(THEMES), help="how many of the themes and widths")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder:
        uploads = Path(folder) / "runs" / "uploads"
        uploads.mkdir(parents=True)
        (uploads / "study.yaml").write_text(STUDY)
        (uploads / "jobs.csv").write_text(JOBS)
        command = [sys.executable, "-m", "windtunnel", "ui", "--no-open", "--port", "0"]
        command += ["--runs", str(uploads.parent)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server, sync_playwright() as play:
            assert server.stderr is not None
            found = re.search(r"http://\S+/", server.stderr.readline())
            assert found is not None
            browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            walk = Walk(browser, found[0], asked.axe.read_text(), asked.out)
            try:
                for scheme, width in THEMES[: asked.themes]:
                    walk.theme(scheme, width)
            finally:
                browser.close()
                server.terminate()
                server.stderr.read()
    print("\n".join(f"WRONG {one}" for one in walk.wrong) or "nothing serious")
    return 1 if walk.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
