"""What decides between two plans: the parts of the step in which they differ, and whether the band lets one say so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from windtunnel.studies.planning.answer import Planned
from windtunnel.units import format_bytes, format_time

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
    known = {"zero_stage": "ZeRO", "cuda_graphs": "CUDA graphs"}
    return known.get(name, name.replace("micro_batch", "micro-batch").replace("_", " "))


def _value_words(value: object) -> object:
    return ("on" if value else "off") if isinstance(value, bool) else value


def _part(name: str) -> str:
    """A part of the step as `predict` prints it."""
    words = (word.upper() if word in ACRONYMS else word for word in name.split())
    return " ".join(f"experts' {word[1:]}" if word in ("EDP", "ETP") else word for word in words)


def seconds_ranked(one: Planned) -> float:
    """The step, or what is left of it under what was asked to go wrong."""
    return one.effective_step_time_s or one.step_time_s


def _as_ranked(one: Planned, other: Planned, objective: str) -> Planned:
    """The other plan in what these two are ranked by: of cost and energy, as long as GPUs of the first would take."""
    if objective == "time" or one.n_gpus == other.n_gpus:
        return other
    more = other.n_gpus / one.n_gpus
    return replace(
        other,
        step_time_s=other.step_time_s * more,
        p5_s=other.p5_s * more,
        p95_s=other.p95_s * more,
        effective_step_time_s=None if other.effective_step_time_s is None else other.effective_step_time_s * more,
        breakdown_s={name: seconds * more for name, seconds in other.breakdown_s.items()},
    )


def _more_memory(one: Planned, other: Planned) -> str:
    """What the other plan needs more, and what it takes more or less."""
    apart = other.step_time_s / one.step_time_s - 1.0
    more = format_bytes(other.peak_memory_bytes - one.peak_memory_bytes)
    return f"needs {more} more and takes {abs(apart):.2%} {'more' if apart >= 0 else 'less'} time"


def joules_ranked(one: Planned) -> float:
    """Energy of a token, of which the step under what goes wrong takes as much more as it is longer."""
    return seconds_ranked(one) / one.step_time_s / one.tokens_per_joule if one.tokens_per_joule else 0.0


def _more_energy(one: Planned, other: Planned) -> str:
    """What the other plan takes more or less, of energy and of time."""
    energy = joules_ranked(other) / joules_ranked(one) - 1.0
    time = seconds_ranked(_as_ranked(one, other, "energy")) / seconds_ranked(one) - 1.0
    words = [f"{abs(part):.2%} {'more' if part >= 0 else 'less'}" for part in (energy, time)]
    return f"takes {words[0]} energy and {words[1]}{' GPU' if one.n_gpus != other.n_gpus else ''} time"


def told_apart(one: Planned, other: Planned, objective: str = "time") -> bool:
    """Whether the difference is larger than half of either band: what is common to both errs the same way in both."""
    if objective == "memory":
        return one.peak_memory_bytes != other.peak_memory_bytes
    ratio = joules_ranked(other) / joules_ranked(one) if objective == "energy" else 0.0
    other = _as_ranked(one, other, objective)
    apart = abs((ratio or seconds_ranked(other) / seconds_ranked(one)) - 1.0) * one.step_time_s
    return apart > max(one.p95_s - one.p5_s, other.p95_s - other.p5_s) / 2.0


def changes(one: Planned, other: Planned) -> str:
    """The fields in which the other plan differs, with its values."""
    names = sorted({*one.plan, *other.plan})
    texts = [
        f"{field_words(name)} {_value_words(other.plan.get(name, 'as by default'))}"
        for name in names
        if one.plan.get(name) != other.plan.get(name)
    ]
    if one.techniques != other.techniques:
        texts.append("+".join(other.techniques) or "no technique")
    if one.n_gpus != other.n_gpus:
        texts.insert(0, f"{other.n_gpus:,} GPUs")
    return ", ".join(texts) or "nothing"


def decides(one: Planned, other: Planned, objective: str = "time") -> str:
    """One sentence on the first two plans."""
    named = f"the second ({changes(one, other)})"
    if objective == "memory":
        return f"{named} {_more_memory(one, other)}"
    if objective == "energy":
        return f"{named} {_more_energy(one, other)}{_band(one, other, objective)}"
    unit = "" if objective == "time" or one.n_gpus == other.n_gpus else " GPU time"
    other = _as_ranked(one, other, objective)
    apart = seconds_ranked(other) / seconds_ranked(one) - 1.0
    parts = [
        f"{format_time(abs(seconds))} {'more' if seconds > 0 else 'less'} {_part(name)}"
        for name, seconds in differences(one, other)[:PARTS_NAMED]
        if abs(seconds) > WORTH_NAMING * one.step_time_s
    ]
    more = "more" if apart >= 0 else "less"
    text = f"{named} takes {abs(apart):.2%} {more}{unit}"
    calm = "" if one.effective_step_time_s is None else " under trouble; without any"
    text += f"{calm}: {', '.join(parts)}" if parts else ": no part of the step differs much"
    return text + _band(one, other, objective)


def _band(one: Planned, other: Planned, objective: str) -> str:
    apart = told_apart(one, other, objective)
    return "" if apart else "; that is less than the band, so the two are not told apart"


def sensitivity(ranked: Sequence[Planned], *, by_gpu: bool) -> tuple[tuple[str, str], ...]:
    """Which part of a step, priced 10 % dearer or cheaper everywhere, makes another of these plans the best.

    To first order: a part's share of the step moves with its price, and nothing hides that was not hidden. `by_gpu`:
    plans are ranked by GPU-hours, not by time.
    """
    found = []
    for name in sorted({name for one in ranked for name in one.breakdown_s}):
        for change, word in ((OFF, "dearer"), (-OFF, "cheaper")):

            def time_at(one: Planned, name: str = name, change: float = change) -> float:
                changed = 1.0 + change * one.breakdown_s.get(name, 0.0) / one.step_time_s
                time = seconds_ranked(one) * changed
                return time * (one.n_gpus if by_gpu else 1)

            winner = min(ranked, key=time_at)
            if time_at(winner) < time_at(ranked[0]):
                found.append((f"{_part(name)} {OFF:.0%} {word}", changes(ranked[0], winner)))
    return tuple(found)


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
