"""The templates of the offline pages: one environment for all of them, so that all escape and refuse alike."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING

from windtunnel.faces.report.figures import duration, plain, significant
from windtunnel.units import format_bytes, format_count, format_many, format_percent, format_time

if TYPE_CHECKING:
    from jinja2 import Template


@lru_cache
def page_template(name: str, package: str = "windtunnel.faces.report") -> Template:
    """The template `name` of a package's `templates/`, which may include those of the reports.

    A variable that a page lacks is an error, and text is escaped.
    """
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    folders = [files(one) / "templates" for one in dict.fromkeys((package, "windtunnel.faces.report"))]

    def source(part: str) -> str | None:
        found = next((folder / part for folder in folders if (folder / part).is_file()), None)
        return found.read_text(encoding="utf-8") if found else None

    environment = Environment(
        loader=FunctionLoader(source), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    # `fmt` formats as an f-string does.
    environment.filters |= {"plain": plain, "duration": duration, "significant": significant, "fmt": format}
    environment.filters |= {
        "bytes": format_bytes,
        "counted": format_count,
        "many": format_many,
        "percent": format_percent,
        "time": format_time,
    }
    return environment.get_template(name)
