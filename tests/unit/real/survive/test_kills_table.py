"""The recorded round of kills: what the page says of it is what its rows say."""

from __future__ import annotations

import csv
import statistics
from pathlib import Path

HERE = Path(__file__).parents[4]
ROWS = list(csv.DictReader((HERE / "validation" / "resilience" / "kills.csv").open(newline="")))


def test_no_killed_job_lost_a_bit_or_left_a_process() -> None:
    assert {(row["same_bits"], row["status"], row["orphans"]) for row in ROWS} == {("True", "0", "0")}


def test_the_page_counts_what_was_killed() -> None:
    words = [word for row in ROWS for word in row["killed"].split()]
    hosts, servers = words.count("host"), words.count("server")
    kills = len(words) - hosts  # a host is two words
    ratios = [float(time) / float(row["relaunch_s"]) for row in ROWS for time in row["downtimes_s"].split()]
    page = " ".join((HERE / "docs" / "measured" / "resilience.md").read_text().split())
    assert f"{kills} kills in {len(ROWS)} jobs of {len({row['script'] for row in ROWS})} scripts" in page
    assert f"{kills - hosts - servers} of ranks and standbys, {servers} of fork servers, {hosts} of whole hosts" in page
    assert (
        f".{statistics.median(ratios):.3f}".replace(".0.", ".") + f" of a relaunch in the median of {len(ratios)}"
        in page
    )
    assert kills >= 100
    assert statistics.median(ratios) <= 0.2
