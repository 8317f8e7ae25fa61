"""What a fleet's question names, read: policies, jobs and cluster as they are changed, and the options of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.errors import SpecError
from windtunnel.questions.asked.fleet.jobs import Scheduled, Simulated
from windtunnel.questions.asked.fleet.study import ByFile, Failing, Steady
from windtunnel.studies.fleet.changed import changed_cluster
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.jobs.trace import Jobs, held_at_once
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.parts.part import with_shares
from windtunnel.studies.fleet.policies.own import title
from windtunnel.studies.fleet.policies.table import POLICIES, plain_name
from windtunnel.studies.fleet.site import USUAL_NODE, Site, parse_site
from windtunnel.studies.fleet.speeds.predicted import predicted_speeds
from windtunnel.studies.fleet.speeds.tables import Tables
from windtunnel.units import format_many, parse_time

if TYPE_CHECKING:
    from windtunnel.studies.fleet.capacity import Changes


def as_asked(question: Scheduled) -> tuple[list[str], Jobs, Site, tuple[str, ...]]:
    """The policies, the jobs and the site of a question as changed, and what was assumed. Raises UserError."""
    names, jobs, site, notes = _as_told(question)
    if isinstance(question, Simulated) and question.change:
        jobs, site = changed_cluster(question.change, jobs, site)
    return names, jobs, site, notes


def _as_told(question: Scheduled) -> tuple[list[str], Jobs, Site, tuple[str, ...]]:
    names = policies_of(question.policy)
    jobs = read_jobs(question.trace, question.where)
    site = parse_site(question.cluster, question.gpus_per_node) if question.cluster else None
    jobs = with_shares(jobs, site)
    most = held_at_once(jobs)
    unread = sum(each.count for each in jobs.not_understood)
    notes: tuple[str, ...] = ()
    if unread:
        what = f"{format_many(unread, 'job')} of the log not taken as they stand"
        notes = (f"{what}; `windtunnel fleet lint` says which and why",)
    if site is not None:
        if site.slurm and names == ["fifo"]:
            notes += ("--cluster has Slurm's files: --policy slurm does what they say, fifo does not",)
        if most > site.gpus:
            text = f"jobs of the log held {format_many(most, 'GPU')} at once, and {site.text} has {site.gpus:,}"
            notes += (f"{text}: the cluster is not the log's, or the log's GPUs are no whole GPUs",)
        return names, jobs, site, notes
    if not most:
        raise SpecError("--cluster", None, "say on what the jobs run, such as t4:64")
    cluster = f"gpu:{-(-most // USUAL_NODE) * USUAL_NODE if most > USUAL_NODE else most}"
    assumed = f"--cluster is not given: {cluster}, since the trace's jobs held {format_many(most, 'GPU')} at once"
    return names, jobs, parse_site(cluster, question.gpus_per_node), (*notes, assumed)


def policies_of(text: str) -> list[str]:
    """Names of policies, and files of them. Raises SpecError."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    names = [name if is_file(name) else name.lower() for name in words]
    if not names:
        raise SpecError("--policy", text, "give one, such as fifo")
    if len({title(name) for name in names}) < len(names):  # figures are told apart by it
        raise SpecError("--policy", text, "name each policy once; a YAML file's name: is what it is called")
    return names


def happened(policy: str) -> bool:
    """Whether it is no policy, but what the log says happened."""
    traits = POLICIES.get(plain_name(policy))
    return traits is not None and traits.loop == "log"


def is_file(policy: str) -> bool:
    """Whether a policy is named by its file."""
    return policy.lower().endswith((".yaml", ".yml"))


def refuse_files(names: Sequence[str]) -> None:
    """SpecError where a policy is named by its file."""
    file = next(filter(is_file, names), None)
    if file is not None:
        raise SpecError("--policy", file, "give a policy's name here")


def options_of(question: Simulated) -> Options:
    """The options that the flags of all simulations give."""
    return Options(
        tables=None if question.tables is None else Tables(Path(question.tables)),
        seed=question.seed,
        pool=question.placement == "pool",
        compatible=question.placement == "compatible",
        restart_s=question.restart,
        speeds=predicted_speeds(),
    )


def changes_of(capacity: Steady | Failing | ByFile) -> Changes | None:
    """What happens to nodes (`Changes`), or None. Raises SpecError."""
    if isinstance(capacity, Steady):
        return None
    from windtunnel.studies.fleet.capacity import Changes

    every = capacity.checkpoint_every
    checkpoint_s = float("inf") if every == "never" else parse_time(every, "--checkpoint-every")
    if isinstance(capacity, ByFile):
        return Changes(None, checkpoint_s=checkpoint_s, trace=Path(capacity.capacity))
    mtbf = capacity.mtbf_node.strip()
    if mtbf[-1:].isdigit():
        raise SpecError("--mtbf-node", mtbf, f"say the unit: {mtbf}d, {mtbf}h or {mtbf}s")
    return Changes(
        parse_time(mtbf, "--mtbf-node"),
        parse_time(capacity.repair, "--repair"),
        capacity.repair_spread,
        capacity.frailty,
        checkpoint_s,
    )
