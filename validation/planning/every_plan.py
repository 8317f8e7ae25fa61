"""Every plan of a space, one by one: the oracle that the search must equal, for small spaces."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from windtunnel.studies.planning.oracle import Layout, Replayed, laid_out, replayed
from windtunnel.studies.planning.space.plan_space import Space, savings, structures, switches


def every_plan(space: Space) -> Iterator[Layout]:
    """All legal plans. Raises UserError if a saving or switch made a legal structure illegal, which none may."""
    for structure in structures(space):
        for saving in savings(space, structure):
            options = switches(space, structure, saving)
            for chosen in product(*options.values()):
                fields = {**saving, **dict(zip(options, chosen, strict=True))}
                yield laid_out(space.model, space.cluster, structure.user_plan.with_fields(fields))


def best_of_all(space: Space) -> tuple[Layout, Replayed] | None:
    """The fastest plan that fits, by replaying every one; None where none fits."""
    best: tuple[Layout, Replayed] | None = None
    for layout in every_plan(space):
        one = replayed(layout)
        if one.fits and (best is None or one.step_ns < best[1].step_ns):
            best = (layout, one)
    return best
