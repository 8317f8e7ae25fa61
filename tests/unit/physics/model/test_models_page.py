"""The page on adding a model: its file reads what transformers builds, by the page alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from windtunnel.physics.model import read_config
from windtunnel.physics.model.reading import type_files

DERIVED = Path(__file__).parent / "derived_by_transformers.json"
PAGE = Path(__file__).parents[4] / "docs" / "models.md"


def test_the_file_of_the_page_is_the_model_that_transformers_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    match = re.search(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    assert match
    row = json.loads(DERIVED.read_text())["olmoe"]
    shipped = read_config(row["config"])
    (tmp_path / "olmoe.yaml").write_text(match[1])
    monkeypatch.setattr(type_files, "FOLDER", tmp_path)
    caches = (type_files.type_names, type_files.rules_of, type_files.fields_asked)
    for cache in caches:
        cache.cache_clear()
    try:
        model = read_config(row["config"])
    finally:
        for cache in caches:
            cache.cache_clear()
    assert model.parameters == row["parameters"]
    assert model == shipped
