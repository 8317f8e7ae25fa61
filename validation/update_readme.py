"""Fills the marked parts of README.md: the prediction by running its command, accuracy from docs/accuracy-history.md.

    python validation/update_readme.py            # after validation/blind.py ... --write, recent.py ... --write

And the table of runs of 2026 in docs/physics/training.md, from `history/recent.csv` and the history's first section. A
test holds both pages against what this script would write.
"""

from __future__ import annotations

import csv
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README, HISTORY = ROOT / "README.md", ROOT / "docs" / "accuracy-history.md"
TRAINING, RECENT = ROOT / "docs" / "physics" / "training.md", ROOT / "validation" / "history" / "recent.csv"
FIRST, SINCE = ("mean", "held"), ("mean", "median", "bias", "held", "left out")
PREDICT = (
    "windtunnel predict llama-3.1-405b --cluster h100-sxm:8192"
    " --tp 8 --pp 16 --cp 2 --global-batch 1536 --seq 8192 --no-save"
)
WIDTH = 100


def filled(text: str, marker: str, body: str) -> str:
    """`text` with what stands between `<!-- marker -->` and `<!-- /marker -->` replaced."""
    found = re.subn(
        rf"(<!-- {marker} -->\n).*?(<!-- /{marker} -->)", lambda m: m[1] + body + m[2], text, flags=re.DOTALL
    )
    assert found[1] == 1, f"{marker}: {found[1]} marked sections"
    return found[0]


def by_year(section: str) -> dict[str, dict[str, str]]:
    """The rows of a run's table of years, each by its columns."""
    header, *rows = (
        line.strip("| ").split(" | ") for line in re.findall(r"^\| (?:year|\d{4}) .*", section, re.MULTILINE)
    )
    return {row[0]: dict(zip(header, row, strict=False)) for row in rows}


def accuracy_table(history: str) -> str:
    """Mean errors by year of what was measured: as first predicted, and by the code of the newest run of the script."""
    newest, *_, first = re.split(r"^## ", history, flags=re.MULTILINE)[1:]
    before, now = by_year(first), by_year(newest)
    lines = [
        "| published in | runs | mean | median | bias | in band | left out | before: mean | in band |",
        "| --- |" + " ---: |" * 8,
    ]
    for year, row in now.items():
        figures = [*(row.get(name, "") for name in SINCE), *(before[year][name] for name in FIRST)]
        cells = (f"{figure} %" if figure else "-" for figure in figures)
        lines.append(f"| {year} | {row['rows']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def recent_table(history: str, kept: str) -> str:
    """Mean errors of the sources of 2026: before any change, as it is, without the source and without its project."""
    blind = dict(re.findall(r"^\| ([^|]+) \| \d+ \| [\d.]+ \| ([\d.]+) ", history.rpartition("\n## ")[2], re.MULTILINE))
    rows = list(csv.DictReader(kept.splitlines()))
    names = ("blind", "as it is", "source out", "project out")
    each = [{**row, "blind": blind[row["source"]]} for row in rows]
    means = {name: f"{sum(float(row[name]) for row in each) / len(each):.1f}" for name in names}
    lines = ["| source | rows | " + " | ".join(names) + " |", "|---|" + "---:|" * (1 + len(names))]
    for row in (*each, {"source": "mean of sources", "rows": "", **means}):
        lines.append(f"| {row['source']} | {row['rows']} | " + " | ".join(f"{row[name]} %" for name in names) + " |")
    return "\n".join(lines) + "\n"


def prediction() -> str:
    """The command and what it prints, as a code block."""
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(PREDICT)],
        env={**os.environ, "COLUMNS": str(WIDTH), "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    command = PREDICT.removesuffix(" --no-save").replace(" --tp", " \\\n      --tp")
    return f"```console\n$ {command}\n\n{done.stdout.strip()}\n```\n"


def updated(readme: str, history: str) -> str:
    """README.md as it should be."""
    return filled(filled(readme, "prediction", prediction()), "accuracy", accuracy_table(history))


def training_updated(page: str, history: str) -> str:
    """docs/physics/training.md as it should be."""
    return filled(page, "runs of 2026", recent_table(history, RECENT.read_text(encoding="utf-8")))


def main() -> None:
    """Write both pages."""
    history = HISTORY.read_text(encoding="utf-8")
    TRAINING.write_text(training_updated(TRAINING.read_text(encoding="utf-8"), history), encoding="utf-8")
    README.write_text(updated(README.read_text(encoding="utf-8"), history), encoding="utf-8")


if __name__ == "__main__":
    main()
