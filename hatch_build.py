"""Compiles serving's loop when a wheel is built, where that is asked for: the same source and answers, faster.

    HATCH_BUILD_HOOKS_ENABLE=1 pip install .      needs a C compiler and a minute or two

mypyc takes these modules as they are. It takes no `slots=True`, no `cached_property` and no generic data class.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SERVING = "windtunnel/studies/serving"
MODULES = (
    "windtunnel/physics/engine/events.py",
    f"{SERVING}/kv/pool.py",
    f"{SERVING}/loop.py",
    *(f"{SERVING}/replica/{one}.py" for one in ("admission", "batch", "cache", "ranks", "replica", "rules")),
    *(f"{SERVING}/replica/{one}.py" for one in ("runs", "sequence", "tally")),
    *(f"{SERVING}/routing/{one}.py" for one in ("least_loaded", "prefix_aware")),
    f"{SERVING}/step_time/times.py",
)


class CompiledServing(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the compiled modules to a wheel, beside their source; an editable install stays as it is."""

    def initialize(self, version: str, build_data: dict[str, object]) -> None:
        """Compiles in a folder of its own, so that nothing lies about in the checkout."""
        if version != "standard":
            return
        from mypyc.build import mypycify
        from setuptools import Distribution
        from setuptools.command.build_ext import build_ext

        self._folder, before = Path(tempfile.mkdtemp()), Path.cwd()
        source = self._folder / "src"
        shutil.copytree(Path(self.root) / "src", source)
        os.chdir(source)
        try:
            options = ["--config-file=", "--follow-imports=silent", "--ignore-missing-imports"]
            extensions = mypycify([*options, *MODULES], target_dir=str(self._folder / "build"))
            command = build_ext(Distribution({"name": "windtunnel", "ext_modules": extensions}))
            command.build_temp = str(self._folder / "build")
            command.inplace = True
            command.ensure_finalized()
            command.run()
        finally:
            os.chdir(before)
        built = {source / command.get_ext_filename(one.name) for one in extensions}
        build_data["force_include"] = {str(path): str(path.relative_to(source)) for path in built}
        build_data["pure_python"], build_data["infer_tag"] = False, True

    def finalize(self, version: str, build_data: dict[str, object], artifact_path: str) -> None:
        """The folder goes when the wheel is there."""
        if version == "standard":
            shutil.rmtree(self._folder)
