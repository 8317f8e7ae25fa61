"""`windtunnel techniques`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from windtunnel.faces.cli.output import print_answer, stdout


def techniques(
    name: str | None = None,
    /,
    *,
    json: Annotated[bool, Parameter(negative="", help="Print the list as JSON.")] = False,
) -> None:
    """List the techniques: what each does and needs, its parameters, and what runs it in PyTorch.

    Parameters
    ----------
    name
        One technique alone.
    """
    from windtunnel.studies.techniques.named import find_technique, list_techniques

    listed = list_techniques()
    if name is not None:
        one = find_technique(name).name
        listed = [entry for entry in listed if entry["name"] == one]
    if json:
        print_answer("techniques", {"name": name}, {"techniques": listed})
        return
    from windtunnel.faces.report.techniques import print_techniques

    print_techniques(listed, stdout())
