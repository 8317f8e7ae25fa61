"""What a standby imports while it waits: what the ranks have imported by then.

Much of PyTorch is imported where it is first needed: `torch.compile` imports a second or more of CPU time in its first
call. A standby stops before the script comes to that, so its job would wait for it. A rank tells what it has imported
once its loop goes on, and standbys follow it.
"""

from __future__ import annotations

import json
import sys
import sysconfig
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch.distributed as dist

KEY = "imported"
INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def tell_imports(store: dist.Store) -> None:
    """This process's modules of installed packages, in the order in which their imports began.

    Modules of the script's own are left out: they may do what only a rank that knows who it is shall do.
    """
    every = [(name, module) for name, module in list(sys.modules.items()) if isinstance(module, ModuleType)]
    names = [name for name, module in every if str(vars(module).get("__file__")).startswith(INSTALLED)]
    store.set(KEY, json.dumps(names))


class Follower:
    """The imports of a standby, one at a time: between two of them it looks whether it is needed."""

    def __init__(self, store: dist.Store) -> None:
        self.store = store
        self.missing: list[str] | None = None  # until they are known

    def follow(self) -> bool:
        """Import one module more; False where there is none."""
        if self.missing is None:
            if not self.store.check([KEY]):
                return False
            self.missing = [name for name in json.loads(self.store.get(KEY)) if name not in sys.modules][::-1]
        while self.missing:
            name = self.missing.pop()
            if name not in sys.modules:
                try:
                    import_module(name)
                except Exception:  # the script imports it itself, and gets the error where it can see to it
                    continue
                return True
        return False
