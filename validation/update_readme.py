"""Fills the marked parts of README.md: the prediction by running its command, the accuracy table from docs/accuracy.md.

    python validation/update_readme.py            # after windtunnel validate ... --report docs/accuracy.md

A test holds README.md against what this script would write.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README, ACCURACY = ROOT / "README.md", ROOT / "docs" / "accuracy.md"
SECTION = "Step time by source, specification level A"
COLUMNS = ("source", "priced", "mean", "median", "bias", "worst", "in band", "guess")
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


def cells(line: str) -> list[str]:
    """The cells of one line of a Markdown table."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def tables(page: str) -> dict[str, list[dict[str, str]]]:
    """The first table below each heading of a Markdown page, one mapping per row."""
    found: dict[str, list[dict[str, str]]] = {}
    for part in re.split(r"^#+ ", page, flags=re.MULTILINE)[1:]:
        title, _, rest = part.partition("\n")
        lines = re.search(r"(?:^\|.*\n?)+", rest, re.MULTILINE)
        if lines is None or title in found:
            continue
        header, _, *rows = (cells(line) for line in lines[0].splitlines())
        found[title] = [dict(zip(header, row, strict=True)) for row in rows]
    return found


def accuracy_table(page: str) -> str:
    """The level A scores of the accuracy page, by source, for a first look."""
    rows = [row for row in tables(page)[SECTION] if row["mean"] != "-"]
    lines = [
        "| " + " | ".join(("published runs of", "runs", *COLUMNS[2:])) + " |",
        "| --- |" + " ---: |" * (len(COLUMNS) - 1),
        *("| " + " | ".join(row[name] for name in COLUMNS) + " |" for row in rows),
    ]
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


def updated(readme: str, page: str) -> str:
    """README.md as it should be."""
    return filled(filled(readme, "prediction", prediction()), "accuracy", accuracy_table(page))


def main() -> None:
    """Write README.md."""
    text = updated(README.read_text(encoding="utf-8"), ACCURACY.read_text(encoding="utf-8"))
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
