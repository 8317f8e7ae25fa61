"""YAML as a form to fill in: every scalar is text, a repeated key is an error, and so is anything that is not a form.

YAML 1.1 reads `1e9` as text, `12:30` as 750 and `no` as false; a spec must not depend on that. Here scalars stay text,
and `units` or the schema gives them meaning; an empty value, `~` or `null` is None. Tags mean nothing and merge keys
are refused.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from windtunnel.errors import InputFileError
from windtunnel.input_file import YAML_NODES_MOST, open_input, yaml_nodes

LARGEST_FILE_BYTES = 256 * 1024
LARGEST_CALIBRATED_BYTES = 4 * 1024 * 1024  # a calibrated device lists thousands of points
_LONG_TEXT = 64 * 1024  # from here on the parser in C, whose messages are shorter, saves seconds
_EMPTY = ("", "~", "null")


def read_mapping(path: str | Path, *, own: bool = False) -> dict[str, Any]:
    """The mapping in a YAML file, scalars as text or None. `own`: one of this package, so that nothing is wrong in it.

    Raises:
        InputFileError: missing, unreadable, too large, not UTF-8, not YAML, a repeated key, or not a mapping.
    """
    remedy = "give the path of a readable YAML file"
    try:
        with open_input(path) as file:
            raw = file.read(LARGEST_CALIBRATED_BYTES + 1)
    except OSError as error:
        raise InputFileError(path, error.strerror or "cannot be read", remedy) from error
    except ValueError as error:  # a NUL character in the path
        raise InputFileError(repr(path), str(error), remedy) from error
    largest = LARGEST_CALIBRATED_BYTES if b"calibration" in raw else LARGEST_FILE_BYTES
    if len(raw) > largest:
        raise InputFileError(path, f"larger than {largest // 1024} KiB", "a spec is a short YAML file")
    try:
        return parse_mapping(raw.decode("utf-8"), os.fspath(path), own=own)
    except UnicodeDecodeError as error:
        raise InputFileError(path, f"not UTF-8 at byte {error.start}", "save it as UTF-8 text") from error


def parse_mapping(text: str, where: str, *, own: bool = False) -> dict[str, Any]:
    """The mapping in YAML `text`; `where` names it in messages; `own` as in `read_mapping`.

    Raises:
        InputFileError: as `read_mapping`.
    """
    import yaml

    try:
        fast = (own or len(text) > _LONG_TEXT) and getattr(yaml, "CBaseLoader", None)
        node = yaml.compose(text, Loader=fast or yaml.BaseLoader)
        if node is not None and yaml_nodes(node) > YAML_NODES_MOST:
            problem = f"stands for more than {YAML_NODES_MOST:,} values with its aliases written out"
            raise InputFileError(where, problem, "a spec is a short YAML file")
        value = _plain(node, where, ())
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise InputFileError(where, f"{line}{error.problem or 'not YAML'}", "correct the YAML") from error
    except yaml.YAMLError as error:
        raise InputFileError(where, " ".join(str(error).split()), "correct the YAML") from error
    except OSError as error:
        raise InputFileError(where, error.strerror or str(error), "write it out") from error
    except RecursionError as error:
        raise InputFileError(where, "nested too deeply", "a spec is two or three levels deep") from error
    if not isinstance(value, dict):
        raise InputFileError(where, "holds no `key: value` lines", "write one `key: value` per line")
    return value


def _plain(node: Any, where: str, above: tuple[int, ...]) -> Any:
    """`node` as text, None, list or dict; `above` are the nodes it is inside of, to refuse an alias to itself."""
    import yaml

    if node is None:
        return None
    if id(node) in above:
        raise InputFileError(where, f"{_line(node)}: an alias refers to what it is part of", "write it out")
    inside = (*above, id(node))
    if isinstance(node, yaml.ScalarNode):
        return None if node.style is None and node.value in _EMPTY else node.value
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, where, inside) for item in node.value]
    mapping: dict[str, Any] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
            raise InputFileError(where, f"{_line(key)}: a key must be a plain word", "write `key: value`")
        if key.value in mapping:
            raise InputFileError(where, f"{_line(key)}: {key.value!r} is given twice", "keep one of them")
        mapping[key.value] = _plain(value, where, inside)
    return mapping


def _line(node: Any) -> str:
    return f"line {node.start_mark.line + 1}"
