"""`windtunnel mcp`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def mcp(
    *,
    files: Annotated[Path | None, Parameter(help="Folder whose files questions may name; by default none.")] = None,
) -> None:
    """Answer questions as tools of the Model Context Protocol, over stdin and stdout."""
    from windtunnel.faces.mcp import speak

    speak(files)
