"""`windtunnel diagnose TRAIN.sh --cluster SPEC --log FILE`."""

from __future__ import annotations

from dataclasses import replace

from windtunnel.faces.cli.diagnosis import show_diagnosis
from windtunnel.faces.cli.flags import Below, Command, FlagValues
from windtunnel.faces.cli.predict import plan_below


def below(command_line: FlagValues) -> Below:
    """What files say below the flags; a framework's own file that --plan names is the one that advice is a diff of."""
    from windtunnel.studies.training.launch import is_native

    stated, file = plan_below(command_line), command_line.files.get("plan")
    if file is None or "launch" in command_line.flags or not is_native(file):
        return stated
    return replace(stated, instead={"launch": file})


COMMANDS = (Command("diagnose", show_diagnosis, ("report", "full", "json"), reader=below),)
