"""The first line of a fleet: the best policy of those that could be chosen, and why that may be no advice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from windtunnel.studies.fleet.outcome import against_text
from windtunnel.views import Headline, Number
from windtunnel.views.text import text_of

Amount = float | int | str | None
HAPPENED, CHANGED = "current", " changed"  # the policy that is what happened, and the end of those after --change
ALIKE = 0.005  # of a figure, within which policies are not told apart
NEAR = 0.2  # of the log's mean wait, within which a policy may stand for the log's scheduler
FELT = 0.01  # of a job's completion time, below which nobody minds how long jobs wait
JUDGED = (  # what policies are compared by: the first that all have; whether less is better, and how that is said
    ("jct_mean_s", "mean JCT", "s", True),
    ("allocated_pct", "of GPUs allocated at full arrival", "%", False),
)


def jobs_left_out(figure: Mapping[str, Amount]) -> int:
    """How many jobs a policy could not run."""
    return sum(int(figure.get(key) or 0) for key in ("dropped_jobs", "impossible_jobs"))


def best_of(figures: Sequence[Mapping[str, Amount]]) -> Mapping[str, Amount]:
    """The policy that does best, of those that could be chosen and ran the most jobs."""
    figures = [figure for figure in figures if figure["policy"] != HAPPENED] or figures
    least = min(map(jobs_left_out, figures))
    figures = [figure for figure in figures if jobs_left_out(figure) == least]
    for key, _, _, less in JUDGED:
        values = [figure.get(key) for figure in figures]
        if all(isinstance(value, float | int) for value in values):
            return sorted(figures, key=lambda entry: float(entry[key] or 0.0) * (1 if less else -1))[0]
    return figures[0]


def verdict_of(figures: Sequence[Mapping[str, Amount]], best: Mapping[str, Amount]) -> Headline:
    """The first line: which policy is best, by how much, and whether a log bears that out."""
    key, name, unit, less = next(
        (measure for measure in JUDGED if isinstance(best.get(measure[0]), float | int)), JUDGED[0]
    )
    value = best.get(key)
    if not isinstance(value, float | int):
        return Headline("No job came to its end.", tone="bad")
    number = Number(float(value), unit)
    rest = [figure for figure in figures if figure is not best and isinstance(figure.get(key), float | int)]
    text = f"{best['policy']}: {text_of(number)} {name}"
    others = [entry for entry in rest if entry["policy"] != HAPPENED and jobs_left_out(entry) == jobs_left_out(best)]
    fewer = [str(entry["policy"]) for entry in rest if jobs_left_out(entry) > jobs_left_out(best)]
    if others:
        loser = (max if less else min)(others, key=lambda figure: float(figure[key] or 0.0))
        worst = float(loser[key] or 0.0)
        if abs(worst - value) <= ALIKE * abs(value):
            alike = " and ".join((", ".join(str(figure["policy"]) for figure in others), str(best["policy"])))
            text = f"{alike} are alike: {text_of(number)} {name}"
        else:
            smaller, larger = sorted((worst, float(value)))
            text = f"{best['policy']} is best of {len(others) + 1}: {text_of(number)} {name}, "
            text += f"{loser['policy']} {text_of(worst, unit)}" + (f" ({larger / smaller:.2f} x)" if smaller else "")
    used = best.get("utilisation")
    tail = f"; {text_of(float(used), 'share')} of the GPUs are in use" if isinstance(used, float) else ""
    then = next((entry for entry in rest if entry["policy"] == HAPPENED), None)
    if then is not None and then is not best:
        tail += f"; as it was, {text_of(float(then[key] or 0.0), unit)}"
    if fewer:
        tail += f"; not compared, with fewer jobs: {', '.join(fewer)}"
    doubt = _doubt(figures)
    return Headline(f"{text}{tail}.{doubt}", "warn" if doubt else "good")


def _doubt(figures: Sequence[Mapping[str, Amount]]) -> str:
    """Why what is said is no advice: the log is not of this cluster, or no policy starts its jobs as it did."""
    log = next((figure for figure in figures if figure["policy"] == HAPPENED), {})
    utilisation = log.get("utilisation")
    if isinstance(utilisation, float) and utilisation > 1.0:
        share = text_of(utilisation, "share")
        return f" The log held {share} of these GPUs: it is of another cluster, so this is no advice."
    own = [figure for figure in figures if isinstance(figure.get("log_wait_error"), float)]
    own = [entry for entry in own if not str(entry["policy"]).endswith(CHANGED)]
    if not own:
        return ""
    nearest = min(own, key=lambda figure: float(figure.get("log_start_error_p50_s") or 0.0))
    error, wait = float(nearest["log_wait_error"] or 0.0), float(nearest.get("queueing_delay_mean_s") or 0.0)
    log_wait = float(log.get("queueing_delay_mean_s") or wait / max(1.0 + error, 0.01))
    felt = abs(wait - log_wait) > FELT * float(nearest.get("jct_mean_s") or 0.0)
    if abs(error) <= NEAR or not felt:
        return ""
    beside = f"{nearest['policy']}, mean wait {against_text(error)}"
    return f" No policy here is the log's own (nearest: {beside}): no advice yet."
