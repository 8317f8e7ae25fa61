"""Scripts of `validation/` as modules, for tests of what they hold products against."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[3] / "validation"


def script(name: str) -> ModuleType:
    """`validation/NAME`, run once, apart from any other module of that name."""
    spec = importlib.util.spec_from_file_location(f"validation_{Path(name).stem}", FOLDER / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module
