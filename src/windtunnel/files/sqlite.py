"""SQLite files that a user names: opened read-only, as data; views and triggers of a stranger's file are not run."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from windtunnel.errors import InputFileError
from windtunnel.files.bytes import first_bytes

MAGIC = b"SQLite format 3\0"
ROWS_MOST = 20_000_000


class Tables:
    """The tables of an open file."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self.connection = path, connection
        listed = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self.names = {str(name) for (name,) in listed}

    def columns(self, table: str) -> set[str]:
        """Columns of a table that is there."""
        return {str(row[1]) for row in self.connection.execute(f'PRAGMA table_info("{table}")')}

    def rows(self, table: str, columns: tuple[str, ...], order: str) -> Iterator[tuple[Any, ...]]:
        """Columns of a table in the order of one of them. Raises InputFileError where one is missing."""
        present = self.columns(table) if table in self.names else set()
        missing = [word for word in (*columns, order) if word not in present]
        if missing:
            raise InputFileError(self.path, f"has no {table}.{missing[0]}", "export it again with a newer program")
        selection = ", ".join(f'"{column}"' for column in columns)
        cursor = self.connection.execute(f'SELECT {selection} FROM "{table}" ORDER BY "{order}" LIMIT {ROWS_MOST}')
        yield from cursor


def is_sqlite(path: Path) -> bool:
    """Whether a regular file begins as SQLite files do."""
    return first_bytes(path, len(MAGIC)) == MAGIC


@contextmanager
def open_tables(path: Path) -> Iterator[Tables]:
    """The tables of a file. Raises InputFileError for what is damaged."""
    connection = sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA query_only = ON")
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        yield Tables(path, connection)
    except sqlite3.Error as error:
        raise InputFileError(path, f"is no SQLite file, or is damaged ({error})", "export it again") from None
    finally:
        connection.close()
