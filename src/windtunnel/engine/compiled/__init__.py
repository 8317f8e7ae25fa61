"""All compiled code of the product, by what it computes. Each function also runs uncompiled, as its reference.

Numba keeps compiled code beside the source or in the user's cache folder, and refuses to work where it can write to
neither. Then it is kept under the temporary folder, in a folder that only its owner can write to: whoever can write
there decides what runs.
"""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Any


def _takes_files(folder: Path) -> bool:
    """Whether numba, which looks in the same way, would keep its files there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def temporary_folder() -> Path:
    """Where compiled code is kept if there is no better place; not made yet."""
    return Path(tempfile.gettempdir()) / f"windtunnel-numba-{getattr(os, 'getuid', lambda: 'user')()}"


def _ours() -> Path:
    """The temporary folder if it is ours alone, else one for this process."""
    folder = temporary_folder()
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o022 and found.st_uid == os.getuid():
            return folder
    except (OSError, AttributeError):  # a file of that name; a system without users
        pass
    own = Path(tempfile.mkdtemp(prefix="windtunnel-numba-"))
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return own


def _keep_compiled_code() -> None:
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if (chosen and _takes_files(Path(chosen))) or _takes_files(Path(__file__).parent / "__pycache__"):
        return
    from numba.core import config
    from numba.misc.appdirs import AppDirs

    settings: Any = config  # numba's types name neither
    users: Any = AppDirs
    if not _takes_files(Path(users(appname="numba", appauthor=False).user_cache_dir)):
        settings.CACHE_DIR = str(_ours())


_keep_compiled_code()
