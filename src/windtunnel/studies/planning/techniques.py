"""Techniques on the best plans: which of them, and which together, make a finalist faster still.

A technique rewrites the step of one plan, so it has no bound over plans: the search is over plans alone, and its proof
is of plans without techniques. Each finalist is then predicted with every technique by itself, and with every legal set
of those that shorten its step; pairs that do not go together are never built. The shortest that fits is kept, one for
each finalist, and ranked with the finalists.

Two change what is trained, not only how fast: `sparse_gradients` reduces a part of each gradient, `local_sgd` averages
weights instead of gradients. `all` tries them too, `exact` leaves them out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from windtunnel.errors import UserError
from windtunnel.studies.planning.answers.plans import Planned
from windtunnel.studies.techniques.registry import TECHNIQUES, find_technique, legal

CHANGE_TRAINING = ("sparse_gradients", "local_sgd")
LEAST_GAIN = 1e-3  # of the step: what is less is not worth another line in a launch script
TOGETHER_MOST = 4  # helpful techniques that are tried in all combinations

Priced = Callable[[Planned, tuple[str, ...]], Planned | None]  # None: does not fit


@dataclass(frozen=True, slots=True)
class TechniqueSearch:
    """What came of it. `skipped`: by technique, why it could not be tried on any finalist."""

    plans: tuple[Planned, ...]
    finalists: int = 0
    predicted: int = 0
    unfit_pairs: int = 0  # that do not go together
    skipped: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """JSON-able form, without the plans."""
        return {
            "finalists": self.finalists,
            "predicted": self.predicted,
            "unfit_pairs": self.unfit_pairs,
            "skipped": dict(self.skipped),
        }


def chosen(words: Sequence[str]) -> tuple[str, ...]:
    """Techniques by `all`, `exact` or names, with parameters where they are given. Raises UserError."""
    word_of: dict[str, str] = {}
    for word in (part for text in words for part in _names(text)):
        name = find_technique(word.partition(":")[0]).name
        # Parameters that were given are never dropped.
        word_of[name] = word_of.get(name, word) if word == name else word
    return tuple(word_of.values())


def _names(text: str) -> list[str]:
    if text == "all":
        return [technique.name for technique in TECHNIQUES]
    if text == "exact":
        return [technique.name for technique in TECHNIQUES if technique.name not in CHANGE_TRAINING]
    return [text]


def together(words: Sequence[str]) -> bool:
    """Whether these techniques go together."""
    try:
        legal([find_technique(word.partition(":")[0]) for word in words])
    except UserError:
        return False
    return True


def try_techniques(finalists: Sequence[Planned], words: Sequence[str], priced: Priced) -> TechniqueSearch:
    """The finalists with what makes each fastest. `priced` predicts one; it raises UserError where it cannot."""
    best: list[Planned] = []
    reasons: dict[str, str] = {}
    worked: set[str] = set()
    predicted = unfit = 0
    for finalist in finalists:
        helpful: list[tuple[float, str, Planned]] = []
        for word in words:
            try:
                candidate = priced(finalist, (word,))
            except UserError as error:
                reasons.setdefault(word, str(error))
                continue
            worked.add(word)
            predicted += 1
            if candidate is not None and candidate.step_time_s < finalist.step_time_s * (1.0 - LEAST_GAIN):
                helpful.append((candidate.step_time_s, word, candidate))
        helpful.sort(key=lambda each: each[:2])
        options = [candidate for _, _, candidate in helpful[:1]]
        names = [word for _, word, _ in helpful[:TOGETHER_MOST]]
        for count in range(2, len(names) + 1):
            for some in combinations(names, count):
                if not together(some):
                    unfit += 1
                    continue
                candidate = _of_all(priced, finalist, some)
                predicted += 1
                options += [] if candidate is None else [candidate]
        if options:
            best.append(
                min(options, key=lambda option: (option.step_time_s, len(option.techniques), option.techniques))
            )
    skipped = {word: reason for word, reason in reasons.items() if word not in worked}
    return TechniqueSearch(tuple(best), len(finalists), predicted, unfit, skipped)


def _of_all(priced: Priced, finalist: Planned, words: tuple[str, ...]) -> Planned | None:
    try:
        return priced(finalist, words)
    except UserError:  # each alone can be, the two on this plan cannot
        return None
