"""The report of a serving validation as texts, and as a page in Markdown."""

from __future__ import annotations

from pathlib import Path

from windtunnel.evidence.accuracy.serving.report import Score, ServingReport

HEAD = ("group", "rows", "answered", "TPOT", "median", "bias", "tok/s", "median", "TTFT median", "in band")
NAIVE = ("naive rows", "TPOT", "tok/s")


def scored(report: ServingReport) -> tuple[Score, ...]:
    """Every group, every level, and the whole."""
    return (*report.scores(), *report.by_level(), report.overall())


def cells(score: Score) -> tuple[str, ...]:
    """One score as text."""

    def share(value: float | None) -> str:
        return "" if value is None else f"{100 * value:.1f} %"

    return (
        score.name,
        str(score.rows),
        str(score.answered),
        share(score.tpot_mean),
        share(score.tpot_median),
        "" if score.tpot_bias is None else f"{score.tpot_bias:.2f}",
        share(score.tokens_mean),
        share(score.tokens_median),
        share(score.ttft_median),
        share(score.in_band),
        str(score.naive_rows),
        share(score.naive_tpot_mean),
        share(score.naive_tokens_mean),
    )


def write_page(report: ServingReport, path: Path, command: str) -> None:
    """The same as a page in Markdown."""
    lines = [
        "# Accuracy of serving predictions",
        "",
        f"Written by `{command}`. Errors are |predicted / measured - 1|, means over rows; repeats are left out.",
        "",
        "Naive: bytes over bandwidth, a time per layer and stalls by prompts, with three constants that others fitted",
        "on these very rows; it answers rows where prompts and answers share GPUs.",
        "",
        "aiconfigurator's own estimate is not computed: `aiconfigurator-core`, which windtunnel depends on, prices",
        "single steps; its estimate of a whole deployment is in the larger package `aiconfigurator`. TPOT of its",
        "release 0.12 was measured 25 % off (mean) on this table, with 65 % of the rows answered.",
        "",
        "| " + " | ".join((*HEAD, *NAIVE)) + " |",
        "| --- |" + " ---: |" * (len(HEAD) + len(NAIVE) - 1),
    ]
    lines += ["| " + " | ".join(cells(score)) + " |" for score in scored(report)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
