"""YAML, JSON and TOML as plain data: mappings with text keys, lists, text, finite numbers, truth values and nothing.

Bounded in bytes, in values (each counted as often as an alias stands for it) and in depth. What YAML would make a date
stays text. A key that stands twice, a tag, and a number that is none or too long are errors.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from windtunnel.errors import InputFileError
from windtunnel.files.bytes import READABLE, TEXT_BYTES_MOST, path_of, read_text

if TYPE_CHECKING:
    import yaml


VALUES_MOST, DEPTH_MOST, DIGITS_MOST = 1_000_000, 64, 400
LONG_TEXT = 64 * 1024  # from here on the parser in C, whose messages are shorter, saves seconds
PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "map", "seq"))
MERGE, DATE = "tag:yaml.org,2002:merge", "tag:yaml.org,2002:timestamp"
EMPTY = ("", "~", "null")


def read_document(path: str | os.PathLike[str], remedy: str = READABLE) -> object:
    """What a file says: JSON and TOML by their suffix, else YAML of one document. Raises InputFileError."""
    kind = path_of(path, remedy).suffix.lower()
    if kind == ".json":
        return read_json(path, remedy)
    text = read_text(path, remedy)
    if kind != ".toml":
        return _yaml_documents(text, path, remedy)[0]
    import tomllib

    return _parsed(tomllib.loads, "TOML", text, path, remedy)


def read_json(
    path: str | os.PathLike[str], remedy: str = READABLE, most: int = TEXT_BYTES_MOST, *, infinite: bool = False
) -> object:
    """What a file of any name says in JSON; `infinite`: Infinity is read as null. Raises InputFileError."""
    return _parsed(partial(_json, infinite=infinite), "JSON", read_text(path, remedy, most), path, remedy)


def read_documents(path: str | os.PathLike[str], remedy: str = READABLE) -> list[object]:
    """As `read_document`, of YAML every document; empty ones are left out. Raises InputFileError."""
    if path_of(path, remedy).suffix.lower() in (".json", ".toml"):
        documents = [read_document(path, remedy)]
    else:
        documents = _yaml_documents(read_text(path, remedy), path, remedy, several=True)
    return [each for each in documents if each is not None]


def read_mapping(path: str | os.PathLike[str], remedy: str) -> dict[str, Any]:
    """A document that is a mapping. Raises InputFileError."""
    data = read_document(path, remedy)
    if not isinstance(data, dict):
        raise InputFileError(path, "holds no mapping", remedy)
    return data


def read_form(
    path: str | os.PathLike[str], remedy: str = "write one `key: value` per line", most: int = TEXT_BYTES_MOST
) -> dict[str, Any]:
    """A mapping in YAML whose scalars stay text, so that a unit or a schema gives them meaning; None where empty.

    YAML 1.1 reads `1e9` as text, `12:30` as 750 and `no` as false; a spec must not depend on that.
    Raises InputFileError.
    """
    return form_of(read_text(path, remedy, most), os.fspath(path), remedy)


def form_of(
    text: str, where: str, remedy: str = "write one `key: value` per line", *, own: bool = False
) -> dict[str, Any]:
    """As `read_form`, of `text`; `where` names it in messages. `own`: a data file of this package."""
    (data,) = _yaml_documents(text, where, remedy, as_text=True, own=own)
    if not isinstance(data, dict):
        raise InputFileError(where, "holds no `key: value` lines", remedy)
    return data


def own_document(text: str) -> dict[str, Any]:
    """What a data file of this package says: nothing is wrong in it."""
    import yaml

    document: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return document


def value_of(text: str) -> object:
    """A value on the command line as YAML has it, `[1, 2]` say; text that is no YAML is that text."""
    try:
        (value,) = _yaml_documents(text, "", "")
    except InputFileError:
        return text
    return value


def to_yaml(data: object, *, sort_keys: bool = False, width: int = 80) -> str:
    """A document as text."""
    import yaml

    text: str = yaml.safe_dump(data, sort_keys=sort_keys, width=width, allow_unicode=True)
    return text


def to_yaml_rows(data: object, number: Callable[[float], str]) -> str:
    """A document as text, lists of numbers in one line each; `number` writes a float."""
    import yaml

    class RowByRow(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        """Lists of numbers in one line each."""

    def represent_list(dumper: yaml.SafeDumper, value: list[object]) -> object:
        is_row = all(isinstance(part, (int, float)) for part in value)
        return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=is_row)

    def represent_float(dumper: yaml.SafeDumper, value: float) -> object:
        return dumper.represent_scalar("tag:yaml.org,2002:float", number(value))

    RowByRow.add_representer(list, represent_list)
    for add in (RowByRow.add_representer, RowByRow.add_multi_representer):  # numpy's floats too
        add(float, represent_float)
    text: str = yaml.dump(data, Dumper=RowByRow, sort_keys=False, width=1 << 20, allow_unicode=True)
    return text


def _parsed(read: Callable[[str], object], kind: str, text: str, path: str | os.PathLike[str], remedy: str) -> object:
    _require_few(text, path)
    try:
        data = read(text)
    except (ValueError, RecursionError) as error:
        raise InputFileError(path, f"is not {kind} ({' '.join(str(error).split())})", remedy) from None
    _require_plain(data, path)
    return data


def _json(text: str, *, infinite: bool = False) -> object:
    def constant(word: str) -> None:
        if not infinite or word == "NaN":
            raise ValueError(f"{word} is no number of JSON")

    return json.loads(text, object_pairs_hook=_unique, parse_constant=constant)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for at, key in enumerate(keys) if key in keys[:at])!r} is given twice")
    return mapping


def _require_few(text: str, path: str | os.PathLike[str]) -> None:
    """Refuses what holds far too many values before any of them is made: each ends or begins with one of these."""
    if len(text) > VALUES_MOST and sum(map(text.count, (",", "\n", "[", "{", ": ", "- "))) > 2 * VALUES_MOST:
        raise InputFileError(path, f"holds more than {VALUES_MOST:,} values", "give less")


def _require_plain(data: object, path: str | os.PathLike[str]) -> None:
    """Refuses what JSON or TOML can say and a question cannot mean."""
    stack, count = [(data, 0, "")], 0
    while stack:
        value, depth, where = stack.pop()
        count += 1
        if count > VALUES_MOST:
            raise InputFileError(path, f"holds more than {VALUES_MOST:,} values", "give less")
        if depth > DEPTH_MOST:
            raise InputFileError(path, f"is nested deeper than {DEPTH_MOST}", "write it flatter")
        if isinstance(value, dict):
            stack += [(inside, depth + 1, f"{where}.{key}") for key, inside in value.items()]
        elif isinstance(value, list):
            stack += [(inside, depth + 1, where) for inside in value]
        elif isinstance(value, float) and not math.isfinite(value):
            raise InputFileError(path, f"{where.lstrip('.')} = {value} is no number", "give a finite one")
        elif isinstance(value, int) and abs(value) >> 1024:
            raise InputFileError(path, f"{where.lstrip('.')} is a number of {value.bit_length()} bits", "give less")
        elif not isinstance(value, str | int | float | None):
            raise InputFileError(path, f"{where.lstrip('.')} = {value} is a date", "write it in quotes")


def _yaml_documents(
    text: str,
    path: str | os.PathLike[str],
    remedy: str,
    *,
    several: bool = False,
    as_text: bool = False,
    own: bool = False,
) -> list[object]:
    """Each document; of one document also an empty one, as None."""
    import yaml

    _require_few(text, path)
    kind = "BaseLoader" if as_text else "SafeLoader"
    fast = (own or len(text) > LONG_TEXT) and getattr(yaml, f"C{kind}", None)
    documents, count = [], 0
    try:
        if len(text) > LONG_TEXT:
            _require_bounded(text, path, fast or getattr(yaml, kind))
        loader = (fast or getattr(yaml, kind))(text)  # which refuses control characters itself
        try:
            for node in _nodes(loader) if several else [loader.get_single_node()]:
                check = _Checked(path, as_text)
                count += 0 if node is None else check.count(node, 0)
                if count > VALUES_MOST:
                    problem = f"stands for more than {VALUES_MOST:,} values with its aliases written out"
                    raise InputFileError(path, problem, "write less")
                construct = _texts if as_text else loader.construct_document
                documents.append(None if node is None else construct(node))
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        if "nesting depth" in str(error.problem):  # PyYAML 6.0.4 counts for itself
            raise InputFileError(path, f"is nested deeper than {DEPTH_MOST}", remedy) from None
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise InputFileError(path, f"{line}{error.problem or 'not YAML'}", remedy) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise InputFileError(path, f"is not YAML ({' '.join(str(error).split())})", remedy) from None
    except RecursionError:
        raise InputFileError(path, f"is nested deeper than {DEPTH_MOST}", remedy) from None
    return documents


def _require_bounded(text: str, path: str | os.PathLike[str], loader: type[yaml.SafeLoader]) -> None:
    """Refuses a long text of too many values, or nested so deeply that the parser in C would overflow its stack."""
    import yaml

    depth = 0
    for number, event in enumerate(yaml.parse(text, Loader=loader)):
        if number > 2 * VALUES_MOST:  # a list is two events
            raise InputFileError(path, f"holds more than {VALUES_MOST:,} values", "give less")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEPTH_MOST:
            raise InputFileError(path, f"is nested deeper than {DEPTH_MOST}", "write it flatter")


def _nodes(loader: yaml.SafeLoader) -> Iterator[yaml.Node | None]:
    while loader.check_node():
        yield loader.get_node()


class _Checked:
    """The values of one composed document, each counted as often as an alias stands for it."""

    def __init__(self, path: str | os.PathLike[str], as_text: bool) -> None:
        self.path, self.as_text = path, as_text
        self.counts: dict[int, int | None] = {}  # None: of a node that is not done

    def refuse(self, node: yaml.Node, problem: str, remedy: str) -> NoReturn:
        raise InputFileError(self.path, f"line {node.start_mark.line + 1}: {problem}", remedy)

    def count(self, node: yaml.Node, depth: int) -> int:
        """Raises InputFileError for what is no plain data."""
        if id(node) in self.counts:
            number = self.counts[id(node)]
            if number is None:
                self.refuse(node, "an alias refers to what it is part of", "write it out")
            return number
        if depth > DEPTH_MOST:
            self.refuse(node, f"is nested deeper than {DEPTH_MOST}", "write it flatter")
        self.counts[id(node)] = None
        total = 1
        if isinstance(node.value, str):
            if not self.as_text:
                self._scalar(node)
        elif not self.as_text and node.tag not in PLAIN_TAGS:
            self.refuse(node, f"the tag {node.tag} has no meaning here", "leave it out")
        elif node.value and isinstance(node.value[0], tuple):
            self._keys(node)
            total += sum(self.count(part, depth + 1) for pair in node.value for part in pair)
        else:
            total += sum(self.count(child, depth + 1) for child in node.value)
        self.counts[id(node)] = total
        return total

    def _scalar(self, node: yaml.Node) -> None:
        if node.tag == DATE:
            node.tag = "tag:yaml.org,2002:str"
        elif node.tag not in PLAIN_TAGS and node.tag != MERGE:
            self.refuse(node, f"the tag {node.tag} has no meaning here", "leave it out")
        if node.tag.endswith((":int", ":float")):
            if len(node.value) > DIGITS_MOST:
                self.refuse(node, f"a number of {len(node.value):,} digits", "give fewer")
            digits = node.value.lower().lstrip("+-").replace("_", "")
            if digits in (".nan", ".inf") or (
                ":" not in digits and node.tag.endswith("float") and float(digits) > 1e308
            ):
                self.refuse(node, f"{node.value} is no number", "give a finite one")

    def _keys(self, node: yaml.Node) -> None:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key.value, str) or (self.as_text and key.value == "<<"):
                self.refuse(key, "a key must be a plain word", "write `key: value`")
            if key.value in seen:
                self.refuse(key, f"{key.value!r} is given twice", "keep one of them")
            if not self.as_text and key.tag != MERGE:
                key.tag = "tag:yaml.org,2002:str"  # as it is written: `no`, and `0.10`, a release
            seen.add(key.value)


def _texts(node: Any) -> object:
    """A checked node, scalars as text or None."""
    if isinstance(node.value, str):
        return None if not node.style and node.value in EMPTY else node.value
    if node.value and isinstance(node.value[0], tuple):
        return {key.value: _texts(value) for key, value in node.value}
    return {} if node.id == "mapping" else [_texts(item) for item in node.value]
