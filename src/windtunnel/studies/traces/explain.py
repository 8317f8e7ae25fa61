"""`windtunnel.explain(...)`: what makes a recorded job slower than it should be, from its trace files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.questions.asked.explain import Explain
from windtunnel.questions.typed import check, texts

if TYPE_CHECKING:
    from windtunnel.studies.traces.stragglers.explanation import Explanation


def explain(*traces: str | Path, without: Sequence[str] = ()) -> Explanation:
    """Which worker, stage or kind of op makes a recorded job slower than it should be, and what mending it gives.

    `traces`: an operation table (.parquet), or one Kineto trace (.json, .json.gz) or Chakra trace (.et, .json) per
    rank. `without`: parts to take as ideal, all together, such as `stage=3` or `worker=12`; the answer says how long
    the step is then. Raises UserError for files that cannot be read or replayed, and for parts that are not there.
    """
    traces, without = tuple(traces), texts("without", without)
    check(locals(), traces=Sequence[str | Path])
    from windtunnel.studies.traces.read import read_trace
    from windtunnel.studies.traces.stragglers.counterfactuals import explain as explained

    return explained(read_trace([Path(trace) for trace in traces]), [str(trace) for trace in traces], without)


def answer(question: Explain) -> Explanation:
    """The study's answer. Raises UserError as `explain` does."""
    return explain(*question.traces, without=question.without)
