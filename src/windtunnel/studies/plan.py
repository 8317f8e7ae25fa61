"""The answer to `plan`: the best plans of a named model, or the best cuts of a captured script."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from windtunnel.errors import SpecError
from windtunnel.physics.hardware.mixed import parse_mixed
from windtunnel.questions.asked.search import Search
from windtunnel.questions.reading import plain_part
from windtunnel.studies.predict import is_captured
from windtunnel.studies.training.question import cluster_of, model_of

if TYPE_CHECKING:
    from windtunnel.studies.planning.answers.plans import Plans
    from windtunnel.studies.planning.oracle import Layout, Replayed

CUT_BY = ("pp", "dp", "framework", "cuda_graphs")  # fields of a plan that a captured script leaves open
CUT_ASKED = ("model", "cluster", "plan", "top")  # and of the question


def answer(question: Search) -> Plans | dict[str, object]:
    """Plans of a model; of a captured script the document of its cuts. Raises UserError."""
    return cuts(question) if is_captured(question.model.base) else plans(question)


def plans(
    question: Search, *, listener: Callable[[Layout, Replayed], None] | None = None, begun_s: float | None = None
) -> Plans:
    """The best plans; `listener` is called with each that is replayed, `begun_s`: when the given time began."""
    from windtunnel.studies.planning.plan import plan as find
    from windtunnel.studies.planning.search.ahead import working_ahead

    word = question.cluster.base
    mixed = None if word is None else parse_mixed(word)
    cluster = cluster_of(question.cluster) if mixed is None else mixed
    used_s = 0.0 if begun_s is None else monotonic() - begun_s
    with _nothing_collected(), working_ahead() as exact:
        return find(
            model_of(question.model, cluster.n_gpus),
            cluster,
            plain_part(question.plan),
            top=question.top,
            within_s=max(0.0, question.within - used_s),
            objective=question.objective,
            gpus=None if question.gpus is None else _range(question.gpus),
            pareto=question.pareto,
            price_per_gpu_hour=question.price,
            slow=question.slow,
            mtbf_s=question.mtbf,
            head_room=question.head_room,
            techniques=question.technique,
            named=(question.model, question.cluster),
            listener=listener,
            exact=exact,
        )


def cuts(question: Search) -> dict[str, object]:
    """The best cuts of a captured script. Raises SpecError on what only the plan of a named model takes."""
    from windtunnel.studies.planning.captured import plan_captured

    fixed = plain_part(question.plan)
    extra = {name: value for name, value in plain_part(question).items() if name not in CUT_ASKED}
    extra |= {name: value for name, value in fixed.items() if name not in CUT_BY}
    for name, value in extra.items():
        why = "leave it out: a captured script is cut into stages and replicas, with --pp or --dp if they are given"
        raise SpecError(f"--{name.replace('_', '-')}", str(value), why)
    if len(plain_part(question.model)) > 1 or question.cluster.base is None or len(plain_part(question.cluster)) > 1:
        raise SpecError("--set", "given", "leave it out: a captured script is cut as it is")
    return plan_captured(question.model.base, question.cluster.base, top=question.top, **fixed)


def _range(text: str) -> tuple[int, int]:
    low, dots, high = text.partition("..")
    if not (text.isascii() and low.isdigit() and (high.isdigit() or not dots)):
        raise SpecError("--gpus", text, "give the least and the most, e.g. 512..4096")
    return int(low), int(high or low)


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """A search keeps nearly all that it makes: collecting took a tenth of its time and freed nothing."""
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()
