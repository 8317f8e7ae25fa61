"""Fitted constants as data: each file says on what it was fitted, and when."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import Any

from windtunnel.files.document import own_document


@lru_cache
def read_calibration(name: str) -> dict[str, Any]:
    """One of the data files here, such as `training.yaml`, read once."""
    return own_document(files(__name__).joinpath(name).read_text(encoding="utf-8"))
