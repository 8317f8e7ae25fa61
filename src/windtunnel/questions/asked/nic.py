"""What `nic` is asked: a data path, a NIC and a rate."""

from __future__ import annotations

from typing import Annotated, ClassVar

from windtunnel.questions.about import About, part


@part
class Nic:
    """How many host cores a data path takes, and what of it a NIC with cores of its own takes over."""

    verb: ClassVar[str] = "nic"
    positional: ClassVar[tuple[str, ...]] = ("graph",)
    graph: Annotated[str, About("The data path: a YAML file of operations with their cycles (docs/nic.md).")]
    nic: Annotated[str, About("bluefield-2, agilio-cx, or a YAML file.")] = "bluefield-2"
    target: Annotated[str, About("Traffic, e.g. 100Gb/s.")] = "100Gb/s"
