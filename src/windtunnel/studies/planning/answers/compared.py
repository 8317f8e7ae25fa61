"""What decides between two plans: the parts of the step in which they differ, and whether the band lets one say so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from windtunnel.studies.planning.answers.plans import Planned
from windtunnel.units import format_bytes, format_time

PARTS_NAMED = 3
WORTH_NAMING = 0.001  # of the step
OFF = 0.1
ACRONYMS = ("gemm", "tp", "dp", "pp", "cp", "ep", "edp", "etp")


def differences(first: Planned, other: Planned) -> list[tuple[str, float]]:
    """Seconds that `other` spends more on each part of the step, largest first."""
    names = {*first.breakdown_s, *other.breakdown_s}
    more = [(name, other.breakdown_s.get(name, 0.0) - first.breakdown_s.get(name, 0.0)) for name in names]
    return sorted(more, key=lambda part: (-abs(part[1]), part[0]))


def field_words(name: str) -> str:
    """A plan field as people say it."""
    words = {"zero_stage": "ZeRO", "cuda_graphs": "CUDA graphs"}
    return words.get(name, name.replace("micro_batch", "micro-batch").replace("_", " "))


def _value_words(value: object) -> object:
    return ("on" if value else "off") if isinstance(value, bool) else value


def _part(name: str) -> str:
    """A part of the step as `predict` prints it."""
    words = (word.upper() if word in ACRONYMS else word for word in name.split())
    return " ".join(f"experts' {word[1:]}" if word in ("EDP", "ETP") else word for word in words)


def seconds_ranked(plan: Planned) -> float:
    """The step, or what is left of it under what was asked to go wrong."""
    return plan.effective_step_time_s or plan.step_time_s


def _as_ranked(first: Planned, other: Planned, objective: str) -> Planned:
    """The other plan in what these two are ranked by: of cost and energy, as long as GPUs of the first would take."""
    if objective == "time" or first.n_gpus == other.n_gpus:
        return other
    more = other.n_gpus / first.n_gpus
    return replace(
        other,
        step_time_s=other.step_time_s * more,
        p5_s=other.p5_s * more,
        p95_s=other.p95_s * more,
        effective_step_time_s=None if other.effective_step_time_s is None else other.effective_step_time_s * more,
        breakdown_s={name: seconds * more for name, seconds in other.breakdown_s.items()},
    )


def _more_memory(first: Planned, other: Planned) -> str:
    """What the other plan needs more, and what it takes more or less."""
    apart = other.step_time_s / first.step_time_s - 1.0
    more = format_bytes(other.peak_memory_bytes - first.peak_memory_bytes)
    return f"needs {more} more and takes {abs(apart):.2%} {'more' if apart >= 0 else 'less'} time"


def joules_ranked(plan: Planned) -> float:
    """Energy of a token, of which the step under what goes wrong takes as much more as it is longer."""
    return seconds_ranked(plan) / plan.step_time_s / plan.tokens_per_joule if plan.tokens_per_joule else 0.0


def _more_energy(first: Planned, other: Planned) -> str:
    """What the other plan takes more or less, of energy and of time."""
    energy = joules_ranked(other) / joules_ranked(first) - 1.0
    time = seconds_ranked(_as_ranked(first, other, "energy")) / seconds_ranked(first) - 1.0
    words = [f"{abs(part):.2%} {'more' if part >= 0 else 'less'}" for part in (energy, time)]
    return f"takes {words[0]} energy and {words[1]}{' GPU' if first.n_gpus != other.n_gpus else ''} time"


def told_apart(first: Planned, other: Planned, objective: str = "time") -> bool:
    """Whether the difference is larger than half of either band: what is common to both errs the same way in both."""
    if objective == "memory":
        return first.peak_memory_bytes != other.peak_memory_bytes
    ratio = joules_ranked(other) / joules_ranked(first) if objective == "energy" else 0.0
    other = _as_ranked(first, other, objective)
    apart = abs((ratio or seconds_ranked(other) / seconds_ranked(first)) - 1.0) * first.step_time_s
    return apart > max(first.p95_s - first.p5_s, other.p95_s - other.p5_s) / 2.0


def changes(first: Planned, other: Planned) -> str:
    """The fields in which the other plan differs, with its values."""
    names = sorted({*first.plan, *other.plan})
    texts = [
        f"{field_words(name)} {_value_words(other.plan.get(name, 'as by default'))}"
        for name in names
        if first.plan.get(name) != other.plan.get(name)
    ]
    if first.techniques != other.techniques:
        texts.append("+".join(other.techniques) or "no technique")
    if first.n_gpus != other.n_gpus:
        texts.insert(0, f"{other.n_gpus:,} GPUs")
    return ", ".join(texts) or "nothing"


def decides(first: Planned, other: Planned, objective: str = "time") -> str:
    """One sentence on the first two plans."""
    subject = f"the second ({changes(first, other)})"
    if objective == "memory":
        return f"{subject} {_more_memory(first, other)}"
    if objective == "energy":
        return f"{subject} {_more_energy(first, other)}{_band(first, other, objective)}"
    unit = "" if objective == "time" or first.n_gpus == other.n_gpus else " GPU time"
    other = _as_ranked(first, other, objective)
    apart = seconds_ranked(other) / seconds_ranked(first) - 1.0
    parts = [
        f"{format_time(abs(seconds))} {'more' if seconds > 0 else 'less'} {_part(name)}"
        for name, seconds in differences(first, other)[:PARTS_NAMED]
        if abs(seconds) > WORTH_NAMING * first.step_time_s
    ]
    more = "more" if apart >= 0 else "less"
    text = f"{subject} takes {abs(apart):.2%} {more}{unit}"
    calm = "" if first.effective_step_time_s is None else " under trouble; without any"
    text += f"{calm}: {', '.join(parts)}" if parts else ": no part of the step differs much"
    return text + _band(first, other, objective)


def _band(first: Planned, other: Planned, objective: str) -> str:
    apart = told_apart(first, other, objective)
    return "" if apart else "; that is less than the band, so the two are not told apart"


def sensitivity(ranked: Sequence[Planned], *, by_gpu: bool) -> tuple[tuple[str, str], ...]:
    """Which part of a step, priced 10 % dearer or cheaper everywhere, makes another of these plans the best.

    To first order: a part's share of the step moves with its price, and nothing hides that was not hidden. `by_gpu`:
    plans are ranked by GPU-hours, not by time.
    """
    cases = []
    for name in sorted({name for plan in ranked for name in plan.breakdown_s}):
        for change, word in ((OFF, "dearer"), (-OFF, "cheaper")):

            def time_at(plan: Planned, name: str = name, change: float = change) -> float:
                changed = 1.0 + change * plan.breakdown_s.get(name, 0.0) / plan.step_time_s
                time = seconds_ranked(plan) * changed
                return time * (plan.n_gpus if by_gpu else 1)

            winner = min(ranked, key=time_at)
            if time_at(winner) < time_at(ranked[0]):
                cases.append((f"{_part(name)} {OFF:.0%} {word}", changes(ranked[0], winner)))
    return tuple(cases)


def loses(thumb: Planned, best: Planned, objective: str = "time") -> str:
    """Why the plan of the rule of thumb, of as many GPUs, is worse than the best one."""
    if objective == "memory":
        return "it does not lose" if thumb.peak_memory_bytes <= best.peak_memory_bytes else _more_memory(best, thumb)
    if objective == "energy":
        more = joules_ranked(thumb) > joules_ranked(best)
        return f"it {_more_energy(best, thumb)}" if more else "it does not lose"
    apart = seconds_ranked(thumb) / seconds_ranked(best) - 1.0
    if apart <= 0.0:
        return "it does not lose"
    parts = [f"{format_time(seconds)} more {_part(name)}" for name, seconds in differences(best, thumb) if seconds > 0][
        :PARTS_NAMED
    ]
    return f"{apart:.1%} slower: {', '.join(parts)}"
