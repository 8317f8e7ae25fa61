"""`windtunnel version`."""

from __future__ import annotations


def version_line() -> str:
    """Name and version of the installed package."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return f"windtunnel {installed('windtunnel')}"
    except PackageNotFoundError:  # run from a source tree that nobody installed
        return "windtunnel (not installed)"


def version() -> None:
    """Print the version."""
    print(version_line())
