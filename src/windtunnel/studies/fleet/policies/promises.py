"""EDF, ElasticFlow and Gandiva: the policies of ElasticFlow's evaluation, which decide in slots."""

from __future__ import annotations

from windtunnel.studies.fleet.traits import Need, Traits

SOURCE = "D. Gu et al., ElasticFlow, ASPLOS 2023"
PLANNED: frozenset[Need] = frozenset({"speed", "deadline"})
POLICIES = (
    Traits(
        name="edf",
        asks="all",
        loop="slots",
        needs=PLANNED,
        sizes=True,
        slot_s=True,
        restarts=False,
        other_names=("edf-elastic",),
        source=SOURCE,
    ),
    Traits(
        name="elasticflow",
        asks="all",
        loop="slots",
        needs=PLANNED,
        sizes=True,
        slot_s=True,
        restarts=False,
        source=SOURCE,
    ),
    Traits(name="gandiva", asks="all", loop="slots", needs=frozenset(), slot_s=True, restarts=False, source=SOURCE),
)
