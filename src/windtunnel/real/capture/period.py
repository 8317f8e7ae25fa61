"""The steps after which a script repeats itself: which of them differ, and how many are like each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from windtunnel.real.capture.processes.rank_process import program_file
from windtunnel.real.capture.processes.scheduler import Outcome, Workers
from windtunnel.studies.programs.program_file import read_program
from windtunnel.studies.programs.summary import summary


@dataclass(frozen=True)
class Part:
    """Steps of the period that are alike, as a captured job."""

    document: dict[str, object]
    files: Mapping[int, Path]
    name: str  # of the folder inside the captured one; "" for it itself
    steps: int


class Period:
    """Of the ranks that are kept."""

    def __init__(self, workers: Workers, ranks: Sequence[int]) -> None:
        self._workers, self._kept = workers, ranks
        outcomes = workers.outcomes
        first = outcomes[min(outcomes)]
        every = min(len(outcomes[rank]["digests"]) for rank in ranks)
        self.steps = min(int(first["period"]), every)
        self.unseen = list(first["unseen"])
        self._keys = [tuple(outcomes[rank]["digests"][at] for rank in ranks) for at in range(every)]
        self._window = range(every - self.steps, every)

    def parts(self) -> list[tuple[str, int, Mapping[int, Outcome], dict[int, Path]]]:
        """Of each kind of step, the commonest first: folder, how many, outcome and program of each kept rank."""
        counts = Counter(self._keys[at] for at in self._window)
        last = {self._keys[at]: at for at in self._window}
        kinds = sorted(counts, key=lambda key: (-counts[key], -last[key]))
        return [(f"kind_{n}" if n else "", counts[key], *self._of(key)) for n, key in enumerate(kinds)]

    def _of(self, key: Sequence[str]) -> tuple[dict[int, Outcome], dict[int, Path]]:
        folder = self._workers.folder
        outcomes: dict[int, Outcome] = {}
        files: dict[int, Path] = {}
        for rank, digest in zip(self._kept, key, strict=True):
            outcome = self._workers.outcomes[rank]
            files[rank] = program_file(folder, rank, "" if digest == outcome["main"] else digest)
            outcomes[rank] = outcome
            if digest != outcome["main"]:
                outcomes[rank] = {**outcome, **summary(read_program(files[rank]), digest)}
        return outcomes, files

    def document(self) -> dict[str, object]:
        """How many steps it has, and where those are that differ."""
        parts = self.parts()
        document: dict[str, object] = {"period_steps": self.steps}
        if len(parts) > 1:
            document["period"] = [{"folder": name or ".", "steps": steps} for name, steps, *_ in parts]
        return document
