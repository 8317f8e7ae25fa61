"""Asks one question of each kind and puts the reports side by side in docs/gallery.jpg: `python docs/gallery.py`.

Needs Chromium and Playwright (`pip install playwright`). docs/gallery.md is written with it: each picture's command.
"""

from __future__ import annotations

import random
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
SERVED = "llama-3.1-70b --cluster h100-sxm:16 --prompt 2000 --output 300 --slo ttft=1s,tpot=50ms"
QUESTIONS = {
    "A step of 405B on 8,192 GPUs": "predict llama-3.1-405b --cluster h100-sxm:8192 --tp 8 --pp 16 --cp 2"
    " --global-batch 1536 --seq 8192 --no-save",
    "The best plan": "plan llama-3-70b --cluster h100-sxm:512 --global-batch 512 --seq 8192",
    "Which cluster": "decide llama-3-70b --clusters h100-sxm:512,b200:256,mi355x:256 --tokens 2T"
    " --price h100-sxm=2.5,b200=4,mi355x=3 --mtbf 6h",
    "My own run": "diagnose llama-3-70b --cluster h100-sxm:512 --tp 8 --global-batch 512 --seq 8192 --measured 9.5s",
    "A model served": f"serve {SERVED} --tp 4 --rate 2",
    "How many replicas": f"serve plan {SERVED} --rate 4",
    "A step of RL": "rl qwen3-32b --cluster h100-sxm:128 --framework nemo-rl --prompts 64 --samples 32"
    " --lengths mean=9000,cap=32768",
    "Many jobs, one cluster": "fleet jobs.csv --cluster h100-sxm:256 --policy fifo,easy,tiresias",
    "54 days of failures": "survive llama-3.1-405b --cluster h100-sxm:16384 --tp 8 --pp 16 --global-batch 2048"
    " --seq 8192 --days 54",
}
PAGE = """# Gallery

Written by `python docs/gallery.py`: each report is what its command writes with `--report FILE.html`.

![Reports of all studies](gallery.jpg)

"""
SHEET = """<!doctype html><style>body {{ margin: 0; background: #d9d9d4; font: 600 19px sans-serif; }}
main {{ display: grid; grid-template-columns: repeat(3, 640px); gap: 16px; padding: 16px; }}
figure {{ margin: 0; }} figcaption {{ padding: 2px 4px 6px; }}
img {{ display: block; width: 640px; border-radius: 8px; }}</style><main>{figures}</main>"""


def jobs() -> str:
    """A trace of 400 jobs, the same each time."""
    draw, now_s, rows = random.Random(1), 0.0, ["job,submit_s,duration_s,gpus"]
    for number in range(400):
        now_s += draw.expovariate(1 / 60)
        rows.append(
            f"j{number},{now_s:.0f},{draw.lognormvariate(7.5, 1.4):.0f},{draw.choice((1, 1, 2, 4, 8, 8, 16, 32))}"
        )
    return "\n".join(rows) + "\n"


def main() -> None:
    """Ask, open each report, and write the picture and its page."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        (Path(folder) / "jobs.csv").write_text(jobs(), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1240, "height": 900})
        figures = []
        for number, (title, question) in enumerate(QUESTIONS.items()):
            words = [sys.executable, "-m", "windtunnel", *shlex.split(question), "--report", f"{number}.html"]
            subprocess.run(words, cwd=folder, check=True, stdout=subprocess.DEVNULL)
            page.goto((Path(folder) / f"{number}.html").as_uri())
            page.screenshot(path=Path(folder) / f"{number}.png")
            figures.append(f'<figure><figcaption>{title}</figcaption><img src="{number}.png"></figure>')
        sheet = Path(folder) / "sheet.html"
        sheet.write_text(SHEET.format(figures="".join(figures)), encoding="utf-8")
        page.set_viewport_size({"width": 1984, "height": 900})
        page.goto(sheet.as_uri())
        page.screenshot(path=HERE / "gallery.jpg", type="jpeg", quality=72, full_page=True)
    lines = [f"- **{title}**: `windtunnel {asked.removesuffix(' --no-save')}`\n" for title, asked in QUESTIONS.items()]
    (HERE / "gallery.md").write_text(PAGE + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
