"""Where the measured tables are, and the cache of what was made of them.

The tables are parquet files of `aiconfigurator-core` (NVIDIA, Apache-2.0; Linux x86-64 only). Reading them takes
pyarrow and seconds; what prices need of them is a few small arrays. These are built once and kept as one `.npz` per
system under the user's cache folder; from then on only that is read.

The file name carries the package's version and a version of our format, so an upgrade never meets old content. A file
is trusted only if this user owns it and it holds what was written, to which the SHA-256 in front of it testifies: any
other is built again. A folder that cannot be written is passed over.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PACKAGE = "aiconfigurator-core"
DIGEST_BYTES = 32  # SHA-256, in front of what it testifies to

Arrays = dict[str, NDArray[np.generic]]


def package_data() -> tuple[Path, str] | None:
    """The folder of measured tables and the package's version; None where it is not installed.

    Finds the package without importing it: its extension module is of no use here.
    """
    spec = find_spec("aiconfigurator_core")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations))) / "systems" / "data"
    if not folder.is_dir():
        return None
    try:
        version = metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        version = "unknown"
    return folder, version


def version_order(version: str) -> tuple[int, ...]:
    """Versions in the order of their numbers: 1.3.0rc20 after 1.3.0rc10."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def cached_arrays(name: str, build: Callable[[], Arrays]) -> Arrays:
    """The arrays kept under this file name; what `build` gives, kept from now on, where there are none."""
    for folder in cache_folders():
        stored = read_arrays(folder / name)
        if stored is not None:
            return stored
    arrays = build()
    for folder in cache_folders():
        if write_arrays(folder / name, arrays):
            break
    return arrays


def cache_folders() -> Iterator[Path]:
    """Where a cache file may live, best first: the XDG cache folder, then one per user under the temporary folder."""
    home = os.environ.get("XDG_CACHE_HOME")
    with contextlib.suppress(RuntimeError):  # no home folder
        yield (Path(home) if home else Path.home() / ".cache") / "windtunnel"
    user = getattr(os, "getuid", lambda: "user")()
    yield Path(tempfile.gettempdir()) / f"windtunnel-{user}"


def read_arrays(path: Path) -> Arrays | None:
    """What a cache file holds; None where it is absent, damaged or not ours."""
    try:
        with path.open("rb") as stream:
            if hasattr(os, "getuid") and os.fstat(stream.fileno()).st_uid != os.getuid():
                return None
            digest, content = stream.read(DIGEST_BYTES), stream.read()
    except OSError:
        return None
    if hashlib.sha256(content).digest() != digest:
        return None
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def write_arrays(path: Path, arrays: Arrays) -> bool:
    """Write atomically: readers see the old file or the whole new one. False where that cannot be."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(dir=path.parent, suffix=".npz.part")
    except OSError:
        return False
    try:
        content = io.BytesIO()
        np.savez(content, **arrays)  # type: ignore[arg-type]  # numpy's stub knows no ** of arrays
        with os.fdopen(handle, "wb") as stream:
            stream.write(hashlib.sha256(content.getbuffer()).digest())
            stream.write(content.getbuffer())
        os.replace(scratch, path)
    except OSError:
        Path(scratch).unlink(missing_ok=True)
        return False
    return True
