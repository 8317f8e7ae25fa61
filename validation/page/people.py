"""Thirteen questions that people come with, asked on the page alone: clicks and seconds to the answer.

    python validation/page/people.py [--only WORDS]

Everything is found by its role and its accessible name, as a screen reader tells it, and answers are looked for in the
tree that a screen reader reads. A click, a choice in a list and a dropped file count; typing does not. Scripted paths
are the shortest there are: they say that a way is short, not that people find it. Exit status 1 where an answer does
not come, the median is over 3 clicks, or over 60 seconds.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

CHROMIUM = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
JOBS = "job,submit_s,gpus,duration_s\n" + "".join(
    f"j{number},{number * 200},{2 ** (number % 5)},{900 + 700 * (number % 7)}\n" for number in range(60)
)
TRAIN = """torchrun --nproc-per-node 8 --nnodes 64 pretrain_gpt.py --tensor-model-parallel-size 8 \\
  --pipeline-model-parallel-size 4 --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 \\
  --num-attention-heads 64 --group-query-attention --num-query-groups 8 --seq-length 8192 --swiglu \\
  --max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 512 --bf16 --normalization RMSNorm \\
  --untie-embeddings-and-output-weights --disable-bias-linear --position-embedding-type rope --vocab-size 128256 \\
  --use-distributed-optimizer --sequence-parallel
"""
ANSWER_S = 180.0


class Person:
    """Hands on the page; `clicks` counts what they do, `address` is where the page is."""

    def __init__(self, page: Page, address: str, folder: Path) -> None:
        self.page, self.address, self.folder, self.clicks = page, address, folder, 0

    def press(self, name: str, role: str = "button") -> None:
        """Click what has this name."""
        self.clicks += 1
        self.page.get_by_role(role, name=re.compile(name)).first.click()  # type: ignore[arg-type]

    def type(self, field: str, text: str) -> None:
        """Write into a field and leave it."""
        box = self.page.get_by_label(field, exact=True).first
        box.fill(text)
        box.press("Tab")

    def study(self, verb: str) -> None:
        """Go to the studies and choose one."""
        self.press("^Studies$", "link")
        self.clicks += 1
        self.page.get_by_role("combobox", name="study", exact=True).select_option(verb)
        self.page.wait_for_url(re.compile("verb="))

    def drop(self, name: str, text: str) -> None:
        """Drop a file on the form."""
        self.clicks += 1
        transfer = self.page.evaluate_handle(
            "([name, text]) => { const d = new DataTransfer(); d.items.add(new File([text], name)); return d; }",
            [name, text],
        )
        with self.page.expect_response(re.compile("/uploads")):
            self.page.dispatch_event("[data-drop]", "drop", {"dataTransfer": transfer})

    def hears(self, words: str) -> str:
        """What the tree says that matches `words`, waiting for it."""
        ends = time.monotonic() + ANSWER_S
        while time.monotonic() < ends:
            trees = [frame.locator("body").aria_snapshot() for frame in self.page.frames]  # a report has a frame
            found = re.search(words, "\n".join(trees))
            if found:
                return " ".join(found[0].split())[-110:]
            self.page.wait_for_timeout(100)
        raise TimeoutError(words)


def step(one: Person) -> str:
    return one.hears(r"step time.*\n.*paragraph: [\d.]+\s?s")


def fits(one: Person) -> str:
    one.type("model", "llama-3.1-405b")
    one.type("pipeline stages (pp)", "16")
    return one.hears(r"(?<=405b on 512)[\s\S]*?(Fits|Does not fit)[^\n]*")


def best(one: Person) -> str:
    one.press("^Find the best plan$")
    return one.hears(r"Best plans?[\s\S]{0,200}")


def why(one: Person) -> str:
    return one.hears(r'row "pipeline bubble[^"]*"')


def what_if(one: Person) -> str:
    one.press("^What if …$", "link")
    return one.hears(r'row "(tp )?\d+[^"]*s[^"]*"')


def other_gpu(one: Person) -> str:
    one.type("GPU or cluster", "b200")
    return one.hears(r"512 × b200[\s\S]*?paragraph: [\d.]+\s?s")


def slow_gpu(one: Person) -> str:
    one.clicks += 1
    one.page.get_by_text("A slow GPU, a weak link, uneven experts").click()
    one.page.locator("#f-slow").fill("gpu=5:1.3")
    one.page.locator("#f-slow").press("Tab")
    return one.hears(r"[^\n]*(slower|disturbance|without them|healthy)[^\n]*")


def scheduler(one: Person) -> str:
    one.study("fleet")
    one.drop("jobs.csv", JOBS)
    one.type("trace *", "jobs.csv")
    one.press("^Start$")
    return one.hears(r"paragraph: [^\n]*mean JCT[^\n]*")


def replicas(one: Person) -> str:
    one.study("serve plan")
    one.press("^Start$")
    return one.hears(r"[^\n]*GPU[^\n]*(hold|keep|serve|tp)[^\n]*")


def spares(one: Person) -> str:
    one.study("survive")
    one.press("^Start$")
    return one.hears(r"training goes on [^\n]*")


def which_gpu(one: Person) -> str:
    one.study("decide")
    one.press("^Start$")
    return one.hears(r"paragraph: [^\n]*(cheapest|fastest|b200|h100)[^\n]*")


def split(one: Person) -> str:
    one.study("rl plan")
    one.press("^Start$")
    return one.hears(r"Best: [^\n]* a step")


def measured(one: Person) -> str:
    one.study("diagnose")
    one.drop("train.sh", TRAIN)
    one.type("model *", "train.sh")
    one.type("measured", "11s")
    one.press("^Start$")
    return one.hears(r"[^\n]*11(\.\d+)? ?s (is|are)[^\n]*|[^\n]*as expected[^\n]*")


QUESTIONS: dict[str, Callable[[Person], str]] = {
    "How long is a step of Llama-3-70B on 512 H100?": step,
    "Does 405B fit on them?": fits,
    "What is the best plan?": best,
    "Why is it slow?": why,
    "What would other tensor parallelism give?": what_if,
    "How long on B200?": other_gpu,
    "What does one slow GPU cost?": slow_gpu,
    "Which scheduler for my jobs?": scheduler,
    "How many GPUs serve 4 requests a second?": replicas,
    "What do failures cost, how many spares?": spares,
    "H100 or B200 for 2T tokens?": which_gpu,
    "Which split for RL?": split,
    "I measured 11 s: is that good?": measured,
}


def main() -> int:
    """Ask all, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="questions that have these words")
    only = parser.parse_args().only
    browser_path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    rows, wrong = [], 0
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        command = [sys.executable, "-m", "windtunnel", "ui", "--port", "0", "--runs", str(Path(folder) / "runs")]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ)
        assert server.stderr is not None
        address = re.search(r"http://\S+", server.stderr.readline())[0].split("(")[0].strip()  # type: ignore[index]
        browser = playwright.chromium.launch(executable_path=browser_path, args=list(CHROMIUM))
        try:
            for words, ask in QUESTIONS.items():
                if only not in words:
                    continue
                page = browser.new_page(viewport={"width": 1300, "height": 900})
                page.set_default_timeout(60_000)
                begun = time.monotonic()
                page.goto(address)
                person = Person(page, address, Path(folder))
                try:
                    answer = ask(person)
                except Exception as error:  # the table says so, and the status
                    answer, wrong = f"NO ANSWER: {str(error).splitlines()[0]}", wrong + 1
                rows.append((words, person.clicks, time.monotonic() - begun, answer))
                print(f"{person.clicks} clicks {rows[-1][2]:6.1f} s  {words}  {answer}", flush=True)
                page.close()
        finally:
            browser.close()
            server.terminate()
            server.wait()
    clicks, seconds = statistics.median(row[1] for row in rows), statistics.median(row[2] for row in rows)
    print(f"median {clicks:g} clicks, {seconds:.1f} s; {wrong} without an answer")
    return int(wrong > 0 or clicks > 3 or seconds > 60.0)


if __name__ == "__main__":
    sys.exit(main())
