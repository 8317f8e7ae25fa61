"""Variables of shell scripts, of which nothing is run."""

from __future__ import annotations

import re
from collections.abc import Mapping


def expanded(text: str, values: Mapping[str, str]) -> str:
    """Text with `$A`, `${A}` and `${A:-b}` worked out; a variable that has no value keeps its text."""

    def value(match: re.Match[str]) -> str:
        name, default = match[1] or match[3], match[2]
        return values.get(name, match[0] if default is None else default)

    return re.sub(r"\$\{([A-Za-z_]\w*)(?::?-([^}]*))?\}|\$([A-Za-z_]\w*)", value, text)
