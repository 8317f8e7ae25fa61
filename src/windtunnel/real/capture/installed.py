"""Where installed packages lie: what is in these folders is no part of what the user runs."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import cache


@cache
def installed_folders() -> tuple[str, ...]:
    """Of all that Python looks in: a virtual environment may see its system's packages, or a user's own, as well."""
    own = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    others = (path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages"))
    return tuple(dict.fromkeys(os.path.realpath(path) + os.sep for path in (*own, *others)))
