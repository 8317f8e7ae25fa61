"""A part of a GPU as jobs ask for it, and a trace with parts in units of GPUs.

    1g.10gb     a profile of MIG: so many slices of a GPU's memory, at one of the places where it may begin (`mig.yaml`)
    0.5         a share of a GPU, as MPS and KAI-Scheduler divide it
    2 shares    of as many as the site's file says, `shares_per_gpu` (Slurm's gres/shard, nvidia.com/gpu.shared)

`gpus` of such a job counts parts. A trace in which some job asks for a part runs in units of GPUs, quotas and
nodes too (`in_units`): a policy compares the same whole numbers as ever, and `devices.py` knows which GPU holds what. A
slice of MIG counts as its share of the memory's slices: 1g.10gb as an eighth.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np

from windtunnel.errors import UserError
from windtunnel.files.table import number_of
from windtunnel.studies.fleet.jobs.trace import Jobs, Slices
from windtunnel.studies.fleet.parts.profile import UNITS, Part, profiles_of
from windtunnel.studies.fleet.site import Site

PROFILE = re.compile(r"(\d+g\.\d+gb)(?:[.+]me(?:\.all)?|-me)?")
SHARES = re.compile(r"(\d{1,9}) shares?")


def part_of(text: str, gpu: str = "gpu", shares: int | None = 0) -> Part | str:
    """The part that a text names, on a GPU that is cut into `shares`; else what is wrong, in words after the job.

    Of a cluster that nobody names (`gpu`, `shares` None) any profile and any number of shares is right.
    """
    profile, counted = PROFILE.fullmatch(text), SHARES.fullmatch(text)
    if profile:
        known = profiles_of(gpu)
        names = f"has {', '.join(known)}" if known else "has no MIG"
        return known.get(profile[1]) or f"asks for {text}, and {gpu} {names}"
    if counted and shares == 0:
        return f"asks for {text} of a GPU, and --cluster's file does not say `shares_per_gpu`"
    share = int(counted[1]) / (shares or max(int(counted[1]), 1)) if counted else number_of(text)
    if not 0.001 <= share <= 1 + 1e-9:
        return f"asks for {text[:40]!r} of a GPU: write a profile such as 1g.10gb, or a share from 0.001 to 1"
    return Part(int(share * UNITS + 1e-9))


def parts_of(jobs: Jobs, site: Site | None) -> list[Part | str | None]:
    """The part of each job, None where it asks for whole GPUs; a text says what is wrong."""
    texts = jobs.columns.get("part", [""] * len(jobs))
    gpu, shares = ("gpu", None) if site is None else (site.gpu, site.shares)
    known = {text: part_of(text, gpu, shares) if text else None for text in set(texts)}
    whole = Part(UNITS)
    return [None if known[text] == whole else known[text] for text in texts]


def rows_of_whole_gpus(jobs: Jobs, asked: int) -> list[int]:
    """The jobs that ask for no part of a GPU. Raises UserError where the one in question does."""
    texts = jobs.columns.get("part", [""] * len(jobs))
    if text := texts[asked]:
        name = jobs.name[asked]
        raise UserError(
            f"{jobs.where(asked)}: {name} asks for {text} of a GPU, and `fleet when` knows whole GPUs alone"
        )
    return [row for row, text in enumerate(texts) if not text]


def known_parts(jobs: Jobs, site: Site) -> list[Part | None]:
    """The part of each job, of jobs that all ask for what there is."""
    return [part if isinstance(part, Part) else None for part in parts_of(jobs, site)]


def with_shares(jobs: Jobs, site: Site | None) -> Jobs:
    """The jobs with what each of their parts is of a GPU (`share`); those of unknown parts as whole GPUs."""
    if not any(jobs.columns.get("part", ())):
        return jobs
    shares = [str(part.units / UNITS) if isinstance(part, Part) else "1" for part in parts_of(jobs, site)]
    return replace(jobs, columns={**jobs.columns, "share": shares})


def in_units(jobs: Jobs, site: Site, *, always: bool = False) -> tuple[Jobs, Site]:
    """Jobs, quotas and nodes in units of GPUs (`UNITS`); as they are where no job asks for a part, unless `always`.

    Where queues have quotas of slices, those of each profile are a queue of their own, in cohorts of their own: slices
    and whole GPUs do not stand in for each other. Elsewhere slices count as what they are of GPUs.
    """
    parts = parts_of(jobs, site) if "share" in jobs.columns else [None] * len(jobs)
    if not any(parts) and not always:
        return jobs, site
    units = np.array([part.units if isinstance(part, Part) else UNITS for part in parts], np.int64)
    columns = dict(jobs.columns)
    if "billing" in columns:
        charged = zip(columns["billing"], (jobs.gpus * units).tolist(), strict=True)
        columns["billing"] = [text or str(count / UNITS) for text, count in charged]
    apart: dict[str, int] = {}  # units, by profile
    if any(parts) and (any(quota.slices for quota in jobs.quotas) or any(cohort.slices for cohort in jobs.cohorts)):
        texts = [text if isinstance(part, Part) and part.slices else ""
                 for text, part in zip(columns["part"], parts, strict=True)]  # fmt: skip
        columns["cluster_queue"] = [_apart(*each) for each in zip(jobs.quota_queues, texts, strict=True)]
        apart = {text: int(count) for text, count in zip(texts, units, strict=True) if text}
    if "pod_gpus" in columns:
        columns["pod_gpus"] = [str(float(text) * UNITS) if text else "" for text in columns["pod_gpus"]]
    return replace(
        jobs,
        gpus=jobs.gpus * units,
        columns=columns,
        quotas=(
            *(replace(quota, **_counts(quota)) for quota in jobs.quotas),
            *(
                replace(quota, cohort=_apart(quota.cohort, text), whole_queue=quota.name, **_counts(quota, text, count))
                for text, count in apart.items()
                for quota in jobs.quotas
            ),
        ),
        cohorts=(
            *(replace(cohort, **_counts(cohort)) for cohort in jobs.cohorts),
            *(
                replace(cohort, parent=_apart(cohort.parent, text), **_counts(cohort, text, count))
                for text, count in apart.items()
                for cohort in jobs.cohorts
            ),
        ),
    ), replace(site, per_node=site.per_node * UNITS, sizes=tuple(size * UNITS for size in site.sizes), unit=UNITS)


def _apart(name: str, profile: str) -> str:
    """The queue or cohort of the slices of one profile; no name of Kubernetes has a space."""
    return f"{name} {profile}" if name and profile else name


def _counts(entry: Any, profile: str = "", units: int = UNITS) -> dict[str, Any]:
    """What a queue or a cohort has of whole GPUs, or of the slices of a profile, in units."""
    owed = entry.slices.get(profile, Slices()) if profile else entry
    flavors = {} if profile else {name: replace(each, **_limits(each, units)) for name, each in entry.flavors.items()}
    return {"name": _apart(entry.name, profile), "slices": {}, "flavors": flavors, **_limits(owed, units)}


def _limits(owed: Slices, units: int) -> dict[str, int | None]:
    limits = {name: getattr(owed, name) for name in ("nominal", "borrowing_limit", "lending_limit")}
    return {name: None if limit is None else limit * units for name, limit in limits.items()}
