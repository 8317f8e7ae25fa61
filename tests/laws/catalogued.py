"""Models of the catalogue for laws: one of each kind of config."""

from __future__ import annotations

import json
from importlib.resources import files

from windtunnel.physics.model.catalogue import catalogue_names

SHIPPED = files("windtunnel") / "physics" / "model" / "catalogue"


def _type(name: str) -> str:
    config = json.loads((SHIPPED / f"{name}.json").read_text(encoding="utf-8"))
    inner = config.get("text_config") or {}
    return f"{config.get('model_type') or config.get('_class_name')} {inner.get('model_type', '')}"


_by_type: dict[str, str] = {}
for _name in catalogue_names():
    _by_type.setdefault(_type(_name), _name)
ONE_OF_EACH_TYPE = sorted(_by_type.values())
