"""What every answer can do in a notebook: show itself, draw its pictures, give its table, write its report."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path


class Shown:
    """An answer that is drawn by the views of its study, as console and page draw it."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """A notebook's view of it."""
        return str(_public("notebook_html")(self))

    def plot(self) -> object:
        """Its pictures, for a notebook to show: curves, bars, timelines, heat maps, as on its page."""
        return _public("pictures")(self)

    def report(self, path: str | Path) -> None:
        """Write the offline report: HTML, or Markdown by its suffix. Raises InputFileError where that cannot be."""
        _public("write_report")(self, path)

    def to_dataframe(self) -> object:
        """The rows of its first table as a pandas DataFrame, numbers in SI units.

        Raises UserError where pandas is not installed or the answer has no table.
        """
        return _public("first_table")(self)


def _public(name: str) -> Callable[..., object]:
    """A renderer among the public names: an answer imports no report, the top-level package knows both."""
    renderer: Callable[..., object] = getattr(sys.modules[__name__.partition(".")[0]], name)
    return renderer
