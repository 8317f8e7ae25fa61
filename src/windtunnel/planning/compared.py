"""What decides between two plans: the parts of the step in which they differ, and whether the band lets one say so."""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.planning.answer import Planned
from windtunnel.units import format_time

PARTS_NAMED = 3
WORTH_NAMING = 0.001  # of the step
OFF = 0.1
ACRONYMS = ("gemm", "tp", "dp", "pp", "cp", "ep", "edp", "etp")


def differences(one: Planned, other: Planned) -> list[tuple[str, float]]:
    """Seconds that `other` spends more on each part of the step, largest first."""
    names = {*one.breakdown_s, *other.breakdown_s}
    more = [(name, other.breakdown_s.get(name, 0.0) - one.breakdown_s.get(name, 0.0)) for name in names]
    return sorted(more, key=lambda part: (-abs(part[1]), part[0]))


def field_words(name: str) -> str:
    """A plan field as people say it."""
    return "ZeRO" if name == "zero_stage" else name


def _part(name: str) -> str:
    """A part of the step as `predict` prints it."""
    words = (word.upper() if word in ACRONYMS else word for word in name.split())
    return " ".join(f"experts' {word[1:]}" if word in ("EDP", "ETP") else word for word in words)


def told_apart(one: Planned, other: Planned) -> bool:
    """Whether the difference is larger than half of either band: what is common to both errs the same way in both."""
    apart = abs(other.step_time_s - one.step_time_s)
    return apart > max(one.p95_s - one.p5_s, other.p95_s - other.p5_s) / 2.0


def changes(one: Planned, other: Planned) -> str:
    """The fields in which the other plan differs, with its values."""
    names = sorted({*one.plan, *other.plan})
    said = [
        f"{field_words(name)} {other.plan.get(name, 'as by default')}"
        for name in names
        if one.plan.get(name) != other.plan.get(name)
    ]
    if one.techniques != other.techniques:
        said.append("+".join(other.techniques) or "no technique")
    if one.n_gpus != other.n_gpus:
        said.insert(0, f"{other.n_gpus:,} GPUs")
    return ", ".join(said) or "nothing"


def decides(one: Planned, other: Planned) -> str:
    """One sentence on the first two plans."""
    apart = other.step_time_s - one.step_time_s
    parts = [
        f"{format_time(abs(seconds))} {'more' if seconds > 0 else 'less'} {_part(name)}"
        for name, seconds in differences(one, other)[:PARTS_NAMED]
        if abs(seconds) > WORTH_NAMING * one.step_time_s
    ]
    more = "more" if apart >= 0 else "less"
    said = f"the second ({changes(one, other)}) takes {abs(apart) / one.step_time_s:.2%} {more}"
    said += f": {', '.join(parts)}" if parts else ": no part of the step differs much"
    return said + ("" if told_apart(one, other) else "; that is less than the band, so the two are not told apart")


def sensitivity(ranked: Sequence[Planned], *, by_gpu: bool) -> tuple[tuple[str, str], ...]:
    """Which part of a step, priced 10 % dearer or cheaper everywhere, makes another of these plans the best.

    To first order: a part's share of the step moves with its price, and nothing hides that was not hidden. `by_gpu`:
    plans are ranked by GPU-hours, not by time.
    """
    found = []
    for name in sorted({name for one in ranked for name in one.breakdown_s}):
        for change, said in ((OFF, "dearer"), (-OFF, "cheaper")):

            def then(one: Planned, name: str = name, change: float = change) -> float:
                changed = 1.0 + change * one.breakdown_s.get(name, 0.0) / one.step_time_s
                time = (one.effective_step_time_s or one.step_time_s) * changed
                return time * (one.n_gpus if by_gpu else 1)

            winner = min(ranked, key=then)
            if then(winner) < then(ranked[0]):
                found.append((f"{_part(name)} {OFF:.0%} {said}", changes(ranked[0], winner)))
    return tuple(found)


def loses(thumb: Planned, best: Planned) -> str:
    """Why the plan of the rule of thumb is slower than the best one."""
    apart = thumb.step_time_s / best.step_time_s - 1.0
    if apart <= 0.0:
        return "it does not lose"
    parts = [f"{format_time(seconds)} more {_part(name)}" for name, seconds in differences(best, thumb) if seconds > 0][
        :PARTS_NAMED
    ]
    return f"{apart:.1%} slower: {', '.join(parts)}"
