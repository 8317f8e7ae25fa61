"""The command line: `windtunnel predict | validate | compare | explain | version`. One file per verb, no logic."""

from __future__ import annotations

from windtunnel.faces.cli.app import main

__all__ = ["main"]
