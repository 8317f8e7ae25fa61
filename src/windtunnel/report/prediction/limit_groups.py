"""What limits a step, in the order of what can be done about it: overheads of the layout, then the work itself."""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.report.prediction.categories import family_of
from windtunnel.result import Limit

_WORK = ("compute", "memory", "optimizer")


def limit_groups(limits: Sequence[Limit]) -> list[tuple[str, list[Limit]]]:
    """(title, limits, largest first) of each group that has any."""
    ordered = sorted(limits, key=lambda limit: (-limit.share, limit.what))
    work = [limit for limit in ordered if family_of(limit.what) in _WORK]
    overheads = [limit for limit in ordered if family_of(limit.what) not in _WORK]
    return [(title, group) for title, group in (("overheads", overheads), ("the work itself", work)) if group]
