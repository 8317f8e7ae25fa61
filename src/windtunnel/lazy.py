"""Packages that load when they are used, since what they hold imports torch or much else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from windtunnel.errors import UserError


def lazily(package: str, home: Mapping[str, str]) -> Callable[[str], object]:
    """A package's `__getattr__`. `home`: each name's module, relative to the package.

    Raises UserError where a name needs PyTorch and it is not installed.
    """

    def attribute(name: str) -> object:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(f"{package}.{home[name]}"), name)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            remedy = "install it with: pip install 'windtunnel[torch]'"
            raise UserError(f"{package}.{name} needs PyTorch; {remedy}") from None

    return attribute
