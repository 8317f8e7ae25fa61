"""Times to first token held against means and medians of one and the same run.

    python validation/serving/first_tokens.py TABLE...

Of rows whose source prints both (`ttft_ms` a mean, `ttft_median_ms`): median error, mean of log(predicted / measured)
and of its size, by engine and GPU. A mean holds what compiles or is tuned while the first requests of a run wait.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import defaultdict
from pathlib import Path

from windtunnel.evidence.accuracy.serving.predict import predicted
from windtunnel.evidence.accuracy.serving.rows import ServingRow, read_rows


def main() -> None:
    """Print the errors of both."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("tables", type=Path, nargs="+")
    words.add_argument("--rows", type=int, default=10_000, help="at most so many, evenly spread")
    asked = words.parse_args()
    rows = [row for row in read_rows(asked.tables) if row.number("ttft_ms") and row.number("ttft_median_ms")]
    rows = [row for row in rows if row.text("statistic") == "mean" and not row.text("duplicate_of")]
    logs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows[:: -(-len(rows) // asked.rows)]:
        both = predicted(row), predicted(ServingRow({**row.fields, "statistic": "median"}))
        if both[0].status == "refused":
            continue
        measured = (row.number(name) or 1.0 for name in ("ttft_ms", "ttft_median_ms"))
        mean, middle = (math.log(one.ttft_s * 1e3 / ms) for one, ms in zip(both, measured, strict=True))
        for name in ("all", f"{row.text('engine')} {row.text('gpu')}"):
            logs[name].append((mean, middle))
    for name, pairs in sorted(logs.items()):
        text = f"{name:24s} {len(pairs):4d}"
        for which, of in (("mean", 0), ("median", 1)):
            own = [pair[of] for pair in pairs]
            off = statistics.median(abs(math.expm1(log)) for log in own)
            text += f" | {which} {off:6.1%} {statistics.fmean(own):+.2f} {statistics.fmean(map(abs, own)):.2f}"
        print(text)


if __name__ == "__main__":
    main()
