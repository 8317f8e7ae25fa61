"""The templates of the offline pages: one environment for all of them, so that all escape and refuse alike."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Template


@lru_cache
def page_template(name: str) -> Template:
    """The template `name` of `templates/`; a variable that a page lacks is an error, and text is escaped."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    folder = files("windtunnel.report") / "templates"

    def source(part: str) -> str:
        return (folder / part).read_text(encoding="utf-8")

    environment = Environment(
        loader=FunctionLoader(source), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(name)
