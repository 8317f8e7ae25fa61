"""A trace under Gavel or Sia, in the exact clock. Jobs say model, batch_size, gpus and iterations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from windtunnel.errors import UserError
from windtunnel.studies.fleet.jobs.trace import Jobs
from windtunnel.studies.fleet.kinds.work import Typed
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.policies.elastic.sia import is_valid_shape
from windtunnel.studies.fleet.site import Site
from windtunnel.studies.fleet.traits import Traits


def learns(jobs: Jobs, site: Site, traits: Traits, options: Options) -> bool:
    """Whether Sia goes by goodput that jobs learn: nodes of one kind, and AdaptDL's tables hold every application."""
    return (
        traits.name == "sia" and not site.kinds and options.tables is not None and options.tables.hold_all(jobs.model)
    )


def fits_nowhere(jobs: Jobs, site: Site, traits: Traits, options: Options) -> list[tuple[int, str]]:
    """Jobs that were measured, but on no number of GPUs of a kind that the policy would give here, and why.

    They would wait for ever. What was measured nowhere is a mistake in the tables: `typed_works`.
    """
    if (options.tables is None and options.speeds is None) or learns(jobs, site, traits, options):
        return []
    why, here = [], f"that {traits.name} gives on {site.text}"
    gpus_of = {kind: site.node_kinds.count(kind) * site.per_node for kind in site.node_kinds}
    for at in range(len(jobs)):
        if math.isnan(jobs.batch_size[at]):
            continue
        wanted_gpus = int(jobs.gpus[at])
        rates = _rates(jobs, at, site, options)
        sizes = {
            (kind, gpus) for kind in gpus_of for gpus in rates.get(kind, {}) if traits.sizes or gpus == wanted_gpus
        }
        if sizes and not any(
            gpus <= gpus_of[kind] and (not traits.sizes or is_valid_shape(gpus, site.per_node)) for kind, gpus in sizes
        ):
            why.append((at, f"asks {wanted_gpus} GPUs, and was measured on no number of them {here}"))
        elif not sizes and options.tables is None:
            why.append((at, f"asks for a model that fits in memory on no number of GPUs {here}"))
    return why


def _rates(jobs: Jobs, at: int, site: Site, options: Options) -> Mapping[str, Mapping[int, float]]:
    """Steps per second by kind and number of GPUs: measured where there are tables, else predicted."""
    if options.tables is not None:
        measured: Mapping[str, Mapping[int, float]] = options.tables.by_kind.get(
            (jobs.model[at], int(jobs.batch_size[at])), {}
        )
        return measured
    nodes = Counter(site.node_kinds)
    assert options.speeds is not None
    return {kind: options.speeds(jobs, at, kind, site.per_node, nodes[kind] * site.per_node) for kind in nodes}


def typed_works(jobs: Jobs, site: Site, traits: Traits, options: Options) -> list[Typed]:
    """How fast each job is on each kind. Raises UserError with the line of a job that was measured nowhere."""
    if options.tables is None and options.speeds is None:
        raise UserError(
            f"{traits.name} chooses kinds of GPU by measured speed: give --tables DIR with gavel_throughput.csv"
        )
    works = []
    kinds = set(site.node_kinds)
    for at in range(len(jobs)):
        if math.isnan(jobs.iterations[at]) or math.isnan(jobs.batch_size[at]):
            raise UserError(f"{jobs.where(at)}: {traits.name} needs model, batch_size and iterations of each job")
        rates = _rates(jobs, at, site, options)
        sizes = {gpus for kind in kinds for gpus in rates.get(kind, {})}
        wanted_gpus = int(jobs.gpus[at])
        if not sizes or (not traits.sizes and wanted_gpus not in sizes):
            what = f"{jobs.model[at]} at batch {jobs.batch_size[at]:g} on {wanted_gpus} of {', '.join(sorted(kinds))}"
            raise UserError(f"{jobs.where(at)}: {what} was not measured: gavel_throughput.csv has no such line")
        works.append(Typed(float(jobs.iterations[at]), rates, site.node_kinds, site.per_node, options.restart_s or 0.0))
    return works
