"""What the map of the house and the glossary name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import windtunnel

PACKAGE = Path(windtunnel.__file__).parent
DOCS = Path(__file__).parents[2] / "docs"
PLACES = re.compile(r"`([a-z_]+(?:/[a-z_]+)+(?:/|\.py)?)`")


@pytest.mark.parametrize("page", ["glossary.md", "architecture.md"])
def test_every_place_that_is_named_is_there(page: str) -> None:
    named = PLACES.findall((DOCS / page).read_text())
    assert len(named) > 15
    roots = (PACKAGE, *(PACKAGE / name for name in ("physics", "studies", "real", "faces", "evidence")))
    roots += (PACKAGE / "studies" / "training", DOCS, DOCS.parent)
    missing = [name for name in named if not any((root / name).exists() for root in roots)]
    assert missing == []


def test_the_map_names_every_package() -> None:
    text = (DOCS / "architecture.md").read_text()
    house = text[text.index("## The house") : text.index("## The main loop")]
    packages = {path.parent.name for path in (*PACKAGE.glob("*/__init__.py"), *PACKAGE.glob("*/*/__init__.py"))}
    assert [name for name in sorted(packages) if f" {name}/" not in house] == []
