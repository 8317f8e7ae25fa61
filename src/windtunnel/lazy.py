"""Packages that load when they are used, since what they hold imports torch or much else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import Signature, signature
from types import ModuleType
from typing import Any

from windtunnel.errors import UserError


def lazily(package: str, home: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__`. `home`: each name's module, relative to the package.

    Raises UserError where a name needs PyTorch and it is not installed.
    """

    def attribute(name: str) -> Any:
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


def called_as(package: str, module: str) -> None:
    """Lets a package be called as the function of its name in its `module`: both are `windtunnel.NAME`, and Python
    binds the name of a package that is imported to the package."""

    def function() -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(import_module(f"{package}.{module}"), package.rpartition(".")[2])
        return found

    class Called(ModuleType):
        def __call__(self, *arguments: Any, **options: Any) -> Any:
            return function()(*arguments, **options)

        @property
        def __signature__(self) -> Signature:
            return signature(function())

    sys.modules[package].__class__ = Called
