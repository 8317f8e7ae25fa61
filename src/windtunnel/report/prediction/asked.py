"""The disturbances that a Result was asked for, read from the command line that gives it again.

`Result.spec` holds model, cluster and plan; disturbances stand in `Result.reproduce` only.
"""

from __future__ import annotations

import shlex
from typing import Any

from windtunnel.step.scenario import NAMES


def disturbing(command: str) -> dict[str, Any]:
    """`slow` as a list of texts, the others as their text; what the command does not name is not there."""
    try:
        words = shlex.split(command)
    except ValueError:
        return {}
    found: dict[str, Any] = {}
    for i, word in enumerate(words):
        flag, equals, value = word.partition("=")
        name = flag[2:].replace("-", "_")
        if not flag.startswith("--") or name not in NAMES:
            continue
        text = value if equals else words[i + 1] if i + 1 < len(words) else ""
        if name == "slow":
            found.setdefault(name, []).append(text)
        else:
            found[name] = text
    return found
