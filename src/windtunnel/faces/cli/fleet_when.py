"""`windtunnel fleet TRACE ... --when JOB`: when it starts and ends, with a band, and why it waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel.faces.cli.output import print_answer, show, working

if TYPE_CHECKING:
    from windtunnel.studies.fleet.jobs.trace import Jobs
    from windtunnel.studies.fleet.options import Options
    from windtunnel.studies.fleet.site import Site


def answer_when(
    jobs: Jobs,
    site: Site,
    names: list[str],
    options: Options,
    job: str,
    draws: int | None,
    spread: float,
    json: bool,
) -> None:
    """Print the answer of each policy. JSON: `when` by policy. Raises UserError."""
    from windtunnel.faces.report.fleet import when_document
    from windtunnel.studies.fleet.when import DRAWS, when

    answers = []
    for name in names:
        with working(f"running {name}"):
            answer = when(jobs, site, name, options, job, draws=DRAWS if draws is None else draws, spread=spread)
        answers.append(answer)
    if json:
        own = {"trace": jobs.source, "cluster": site.text, "when": {each.policy: each.to_dict() for each in answers}}
        print_answer("fleet --when", own)
        return
    for answer_ in answers:
        show(when_document(answer_))
