"""Where a process of a surviving job stands: what the launcher tells it by its environment, and by its store."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    import torch.distributed as dist

VARIABLE = "WINDTUNNEL_SURVIVE"


@dataclass(frozen=True, slots=True)
class Place:
    """The launcher's store, this process's name, the number of ranks, and a folder that all share."""

    host: str
    port: int
    name: str
    size: int
    folder: Path
    timeout_s: float  # of one collective
    replace: tuple[tuple[int, int], ...] = ()  # ranks that ask to be replaced once so many steps are done

    def environment(self) -> dict[str, str]:
        """What to add to a child's environment."""
        return {VARIABLE: json.dumps(asdict(self), default=str)}

    @property
    def tape(self) -> Path:
        """What the collectives of one iteration answered, for shadow iterations."""
        return self.folder / "role.tape"


def own_place(environment: Mapping[str, str] = os.environ) -> Place | None:
    """The place of this process; None where no launcher started it."""
    text = environment.get(VARIABLE)
    if text is None:
        return None
    fields = json.loads(text)
    replace = tuple((rank, step) for rank, step in fields["replace"])
    return Place(**{**fields, "folder": Path(fields["folder"]), "replace": replace})


class PublishedView(TypedDict):
    """A view as the launcher writes it."""

    generation: int
    members: list[str]
    planned: bool
    attempt: int
    began: int


def newest_view(store: dist.Store) -> PublishedView | None:
    """What the launcher published last."""
    if not store.check(["view"]):
        return None
    view: PublishedView = json.loads(store.get("view").decode())
    return view
