"""Reading files that a user names: regular files of bounded size, unpacked to bounded size.

A pipe would wait for ever, a device never ends, a few kilobytes of gzip or of YAML aliases unpack to more than fits in
memory. Each is an OSError here, with a message fit to be shown, so that callers treat it as any file that cannot be
read.
"""

from __future__ import annotations

import csv
import io
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from windtunnel.errors import InputFileError

MIB = 1 << 20
TEXT_BYTES_MOST = 64 * MIB  # of tables and specs
TABLE_BYTES_MOST = 1024 * MIB  # of tables of which columns are read, not Python's texts
UNPACKED_BYTES_MOST = 4096 * MIB
YAML_NODES_MOST = 1_000_000  # aliases written out


def open_input(path: str | Path) -> IO[bytes]:
    """The file at `path`, opened for reading bytes. OSError for what is no regular file, or cannot be opened."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(21, os.strerror(21), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(0, "is a pipe or a device, not a file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: str | Path, most: int = TEXT_BYTES_MOST) -> bytes:
    """All of a file. OSError also where it is larger than `most` bytes."""
    with open_input(path) as file:
        is_large = os.fstat(file.fileno()).st_size > most  # said before a sparse file of terabytes is read
        content = b"" if is_large else file.read(most + 1)
    if is_large or len(content) > most:
        raise OSError(0, f"is larger than {most // MIB} MiB", str(path))
    return content


def read_text(path: str | Path, encoding: str = "utf-8", most: int = TEXT_BYTES_MOST) -> str:
    """All of a text file, line ends as `open` gives them. OSError as `read_bytes`; UnicodeDecodeError."""
    return io.TextIOWrapper(io.BytesIO(read_bytes(path, most)), encoding=encoding).read()


def gunzip(packed: bytes, most: int = UNPACKED_BYTES_MOST) -> bytes:
    """What gzip packed, in one or several members. OSError where it is damaged, cut off, or more than `most` bytes."""
    parts, total = [], 0
    while packed:
        stream = zlib.decompressobj(wbits=31)
        try:
            part = stream.decompress(packed, most - total + 1)
        except zlib.error as error:
            raise OSError(0, f"is no gzip, or is damaged ({error})") from None
        parts.append(part)
        total += len(part)
        if total > most:
            raise OSError(0, f"unpacks to more than {most // MIB} MiB")
        if not stream.eof:
            raise OSError(0, "is gzip that is cut off")
        packed = stream.unused_data
    return b"".join(parts)


def read_rows(path: str | Path, remedy: str) -> list[dict[str, str]]:
    """The rows of a CSV file by its header. Raises InputFileError."""
    try:
        return list(csv.DictReader(io.StringIO(read_text(path, "utf-8-sig"), newline="")))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputFileError(path, f"cannot be read ({_reason(error)})", remedy) from None


def read_mapping(path: str | Path, remedy: str) -> dict[str, Any]:
    """A YAML file that holds a mapping. Raises InputFileError."""
    import yaml

    try:
        data = read_yaml(path)
    except OSError as error:
        raise InputFileError(path, f"cannot be read ({_reason(error)})", remedy) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: not UTF-8
        raise InputFileError(path, _wrong_yaml(error), remedy) from None
    if not isinstance(data, dict):
        raise InputFileError(path, "holds no mapping", remedy)
    return data


def _wrong_yaml(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        return f"line {mark.line + 1}: {getattr(error, 'problem', None) or 'not YAML'}"
    return f"not YAML ({_reason(error)})"


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or " ".join(str(error).split())


def read_yaml(path: str | Path) -> Any:
    """What a YAML file of one document says; nothing in it is None. Raises as `read_yaml_documents`."""
    return _constructed(path, lambda loader: [loader.get_single_node()])[0]


def read_yaml_documents(path: str | Path) -> list[Any]:
    """What each document of a YAML file says, by the safe rules. OSError, UnicodeDecodeError, yaml.YAMLError.

    RecursionError, too; what looks like a date and is none, such as 2026-13-45, is a YAMLError.
    """
    return _constructed(path, _nodes)


def _nodes(loader: Any) -> Iterator[Any]:
    while loader.check_node():
        yield loader.get_node()


def _constructed(path: str | Path, composed: Callable[[Any], Iterable[Any]]) -> list[Any]:
    import yaml

    loader = yaml.SafeLoader(read_text(path, "utf-8-sig"))
    found, count = [], 0
    try:
        for node in composed(loader):
            count += 0 if node is None else yaml_nodes(node)
            if count > YAML_NODES_MOST:
                problem = f"stands for more than {YAML_NODES_MOST:,} values with its aliases written out"
                raise OSError(0, problem, str(path))
            found.append(None if node is None else loader.construct_document(node))
        return found
    except (ValueError, OverflowError) as error:
        raise yaml.YAMLError(str(error)) from None
    finally:
        loader.dispose()


def own_yaml(text: str) -> Any:
    """What a data file of this package says: by the parser in C where there is one, ten times as fast as the other.

    For files of users the slower one is taken, which says more exactly what is wrong with them.
    """
    import yaml

    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def yaml_nodes(node: Any) -> int:
    """Values in a composed YAML node, each counted as often as it is referred to. OSError for a circle of aliases."""
    counts: dict[int, int | None] = {}

    def count(one: Any) -> int:
        if id(one) in counts:
            known = counts[id(one)]
            if known is None:
                raise OSError(0, "has an alias that refers to what it is part of")
            return known
        counts[id(one)] = None
        children = one.value if isinstance(one.value, list) else ()
        total = 1
        for child in children:
            total += sum(map(count, child)) if isinstance(child, tuple) else count(child)
        counts[id(one)] = total
        return total

    return count(node)
