"""How layouts are written in one word: `2xtp4`, `1xtp8pp2`, `4xdp8ep8`."""

from __future__ import annotations

import re
from typing import Any

from windtunnel.errors import SpecError


def layout_of(text: str, name: str) -> tuple[int, dict[str, Any]]:
    """`2xtp4`, `1xtp8pp2`, `4xdp8ep8`: how many, and their parallel sizes. Raises SpecError."""
    match = re.fullmatch(r"(?:(\d+)x)?((?:(?:tp|pp|dp|ep)\d+)+)", text.strip().lower().replace(" ", ""))
    if match is None:
        raise SpecError(name, text, "write 2xtp4: how many, and tp, pp, dp or ep of each")
    pairs = re.findall(r"(tp|pp|dp|ep)(\d+)", match[2])
    sizes = {key: int(value) for key, value in pairs}
    if len(sizes) < len(pairs):
        raise SpecError(name, text, "give each of tp, pp, dp and ep once")
    names = {"tp": "tp", "pp": "pp", "dp": "attn_dp", "ep": "moe_ep"}
    count = int(match[1] or 1)
    if count < 1:
        raise SpecError(name, text, "at least one replica")
    return count, {names[key]: value for key, value in sizes.items()}
