"""`windtunnel.survive`: the verb as a function, the module of what a script imports, and the launcher to run.

    windtunnel.survive(model, cluster, plan)                  what failures cost, at any scale (a study)
    from windtunnel.survive import standby                    in a script: a step that outlives a rank
    python -m windtunnel.survive --nproc-per-node 4 train.py  the launcher

Importing the module hides the function behind it, so the module can be called as well.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from windtunnel.lazy import lazily

if TYPE_CHECKING:
    from windtunnel.real.survive import standby, train

__all__ = ["standby", "train"]
__getattr__ = lazily("windtunnel.real.survive", {"standby": "loop.standby", "train": "live.train"})


class _Callable(ModuleType):
    def __call__(self, *arguments: object, **keywords: object) -> object:
        from windtunnel.studies.survive import survive

        study: Callable[..., object] = survive
        return study(*arguments, **keywords)


sys.modules[__name__].__class__ = _Callable

if __name__ == "__main__":
    from windtunnel.real.survive.__main__ import main

    sys.exit(main())
