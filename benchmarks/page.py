"""How fast the page is: answers, weight, first paint, a thousand runs, a picture of 10,000 points.

    python benchmarks/page.py [--no-browser]

Answers are CPU milliseconds of the server for 405B on 8,192 GPUs, one field changed each time, all different. The rest
is seen by Chromium (Playwright): bytes of everything the first page loads, first paint, and the longest task of the
page's thread, which is how long it could not answer the reader.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

QUESTION = {
    "model": "llama-3.1-405b", "gpu": "h100-sxm", "gpus": "8192", "tp": "8", "pp": "16", "global_batch": "2048",
    "seq_len": "8192",
}  # fmt: skip
CHANGES = [
    {}, {"tp": "4"}, {"pp": "8"}, {"pp": "32"}, {"global_batch": "1024"}, {"micro_batch": "2"}, {"seq_len": "4096"},
    {"precision": "fp8"}, {"recompute": "full"}, {"zero_stage": "2"}, {"virtual_stages": "2"}, {"gpus": "4096"},
    {"slow": "gpu=37:1.2"}, {"nic": "200 Gb/s"}, {"cp": "2"},
]  # fmt: skip
SMALL = {"model": "llama-3.2-1b", "gpu": "h100-sxm", "gpus": "8", "global_batch": "16", "seq_len": "1024"}
BREAKDOWN = "where-the-step-goes-mean-over-all-gpus"
RUNS, POINTS, TURNS = 1000, 10_000, 5
PAINT = "performance.getEntriesByName('first-contentful-paint')"
JOB = "20260101000000-abcdef"
WATCH = """
window.longest = 0;
new PerformanceObserver((all) => { for (const one of all.getEntries()) longest = Math.max(longest, one.duration); })
  .observe({ type: "longtask", buffered: true });
"""


def answers(root: Path) -> None:
    """CPU time of each answer; compiled kernels and imports come before."""
    from windtunnel.faces.ui.page import Page

    page = Page(root)
    for change in CHANGES:  # imports and kernels
        page.answer({**SMALL, **{name: value for name, value in change.items() if name in ("recompute", "zero_stage")}})
    page.answer({**QUESTION, "seq_len": "2048"})
    page.answer({**QUESTION, "seq_len": "2048", "slow": "gpu=1:1.1"})
    page.answer({**QUESTION, "seq_len": "2048", "zero_stage": "2"})
    spent = []
    for change in CHANGES:
        begun = time.process_time()
        text = page.answer({**QUESTION, **change})
        spent.append((time.process_time() - begun) * 1e3)
        assert f'id="{BREAKDOWN}"' in text, text[:300]
    begun = time.process_time()
    page.answer(QUESTION)
    again = (time.process_time() - begun) * 1e3
    print(
        f"answer to a changed field: median {statistics.median(spent):.0f} ms CPU,"
        f" worst {max(spent):.0f} of {len(spent)}; asked again {again:.0f}"
    )


def fill(root: Path) -> None:
    """A thousand runs, and a sweep that is done."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from windtunnel.faces.ui.page import Page

    page = Page(root)
    first = root / page.keep(SMALL)
    for number in range(RUNS - 1):
        shutil.copytree(first, root / f"{number:012x}")
    folder = root / "jobs" / JOB
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps({"verb": "sweep", "words": ["s.yaml"], "begun_s": 0.0, "process": 1}))
    (folder / "status").write_text("0")
    (folder / "answer.json").write_text("{}")
    draw = random.Random(1)
    steps = [draw.lognormvariate(0, 0.5) for _ in range(POINTS)]
    table = {
        "status": ["ok"] * POINTS,
        "model": ["llama-3-8b"] * POINTS,
        "cluster": ["h100-sxm:64"] * POINTS,
        "plan.tp": [2 ** (number % 4) for number in range(POINTS)],
        "step_time_s": steps,
        "tokens_per_s": [1e6 / step for step in steps],
        "n_gpus": [64] * POINTS,
        "peak_memory_bytes": [draw.randrange(20 << 30, 80 << 30) for _ in range(POINTS)],
    }
    pq.write_table(pa.table(table), folder / "sweep.parquet")


@contextmanager
def opened(root: Path) -> Iterator[tuple[str, Any]]:
    """A new server that answers, and a new browser."""
    from playwright.sync_api import sync_playwright

    command = [sys.executable, "-m", "windtunnel", "ui", "--no-open", "--port", "0", "--runs", str(root)]
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server, sync_playwright() as play:
        assert server.stderr is not None
        found = re.search(r"http://\S+/", server.stderr.readline())
        assert found is not None
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        try:
            yield found[0], browser
        finally:
            browser.close()
            server.terminate()
            server.stderr.read()


def first_paint(root: Path) -> None:
    """From the start of the first navigation of a new browser to the first paint, the server new as well. Beside it
    one line of text from a server of Python's own: what the browser takes for any page, here and now."""
    spent: dict[str, list[float]] = {"ours": [], "one line": []}
    for _ in range(TURNS):
        with opened(root) as (address, browser):
            spent["ours"].append(painted(browser, address))
        with opened(root) as (_, browser), HTTPServer(("127.0.0.1", 0), OneLine) as other:
            Thread(target=other.serve_forever, daemon=True).start()
            spent["one line"].append(painted(browser, f"http://127.0.0.1:{other.server_port}/"))
            other.shutdown()
    for what, times in spent.items():
        print(f"first paint, {what}: median {statistics.median(times):.0f} ms of {sorted(map(round, times))}")


def painted(browser: Any, address: str) -> float:
    """Milliseconds until the first paint of a new page."""
    page = browser.new_page()
    page.goto(address)
    page.wait_for_function(f"{PAINT}.length")
    return float(page.evaluate(f"{PAINT}[0].startTime"))


class OneLine(BaseHTTPRequestHandler):
    """A page of one line."""

    def do_GET(self) -> None:
        """Answer any address."""
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>one line</title><p>one line")

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def seen(root: Path) -> None:
    """What a browser sees of it."""
    with opened(root) as (address, browser):
        page = browser.new_page()
        page.set_default_timeout(120_000)
        page.add_init_script(WATCH)
        weight = {"all": 0}

        def came(answer: Any) -> None:
            if answer.url.startswith(address) and "/advice" not in answer.url:
                weight["all"] += len(answer.body())

        page.on("response", came)
        page.goto(address)
        page.wait_for_selector(f"#{BREAKDOWN}")
        page.wait_for_timeout(500)
        print(f"page weight: {weight['all'] / 1e3:.0f} kB with everything that it loads, before compression")
        for turn in ("first", "again"):
            begun = time.perf_counter()
            page.goto(f"{address}runs")
            page.wait_for_selector("#rows table")
            page.wait_for_timeout(300)
            took, longest = time.perf_counter() - begun - 0.3, page.evaluate("longest")
            print(f"list of {RUNS} runs, {turn}: {took * 1e3:.0f} ms, longest task {longest:.0f} ms")
        page.goto(f"{address}studies/{JOB}")
        page.wait_for_selector(f"#cloud-canvas[data-drawn='{POINTS}']")
        page.evaluate("longest = 0; performance.mark('begin')")
        page.select_option("#cloud-up", "2")  # drawn anew
        page.wait_for_timeout(1500)
        print(f"{POINTS} points drawn: longest task {page.evaluate('longest'):.0f} ms")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-browser", action="store_true", help="answers alone")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        answers(root / "none")
        if not asked.no_browser:
            first_paint(root / "few")
            fill(root / "runs")
            seen(root / "runs")


if __name__ == "__main__":
    main()
