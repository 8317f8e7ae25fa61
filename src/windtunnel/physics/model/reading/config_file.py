"""Reads the JSON of a `config.json`, with one clear error for whatever can be wrong with the file."""

from __future__ import annotations

import os
from pathlib import Path

from windtunnel.errors import InputFileError
from windtunnel.files.document import read_json

BYTES_MAX = 16 * 2**20  # a config is a few KiB; more is another file given by mistake (weights, a tokenizer)


def config_of(path: Path) -> tuple[dict[str, object], Path]:
    """The object in the file at `path`, or in `config.json` if `path` is a folder; with the path that was read."""
    path = path / "config.json" if os.path.isdir(path) else path
    config = read_json(path, "give a model's config.json, or the folder that holds one", BYTES_MAX, infinite=True)
    if not isinstance(config, dict):
        raise InputFileError(path, f"holds a {type(config).__name__}, not an object", "give the model's config.json")
    return config, path
