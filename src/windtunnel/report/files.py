"""Writing files so that a reader never meets half of one: a temporary file beside it, then rename."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from windtunnel.errors import InputFileError


def write_atomically(path: Path, data: bytes) -> None:
    """Put `data` at `path`, creating folders. Raises InputFileError when the place cannot be written."""
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:80]}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files that only their owner may read; a report is for sharing, within the user's umask.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
        temporary = None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        problem = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputFileError(path, f"cannot be written ({problem})", "give a place that can be written") from None
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
