"""Reads the JSON of a `config.json`, with one clear error for whatever can be wrong with the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from windtunnel.errors import InputFileError
from windtunnel.input_file import read_text

BYTES_MAX = 16 * 2**20  # a config is a few KiB; more is another file given by mistake (weights, a tokenizer)


def read_json(path: Path) -> tuple[dict[str, Any], Path]:
    """The object in the file at `path`, or in `config.json` if `path` is a folder; with the path that was read."""
    try:
        if path.is_dir():
            path = path / "config.json"
        if path.stat().st_size > BYTES_MAX:
            raise InputFileError(path, "larger than any model description", "give the model's config.json")
        text = read_text(path, "utf-8-sig", BYTES_MAX)
    except FileNotFoundError as error:
        remedy = "give the path of a config.json, or of the folder that holds one"
        raise InputFileError(path, "no such file", remedy) from error
    except UnicodeDecodeError as error:
        raise InputFileError(path, "not a text file", "give the model's config.json, encoded as UTF-8") from error
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        why = getattr(error, "strerror", None) or error
        raise InputFileError(path, f"cannot be read ({why})", "give a config.json that can be read") from error
    try:
        found = json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        place = f"no valid JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        raise InputFileError(path, place, "correct the file") from error
    except (ValueError, RecursionError) as error:  # a field given twice, thousands of digits, endless nesting
        raise InputFileError(path, f"no usable JSON ({error})", "correct the file") from error
    if not isinstance(found, dict):
        raise InputFileError(path, f"holds a {type(found).__name__}, not an object", "give the model's config.json")
    return found, path


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the field {key!r} is given twice")
        found[key] = value
    return found
