"""What the real rank's process tells of its end: what went wrong and where, what was measured."""

from __future__ import annotations

import sys
import time
import traceback
from typing import TYPE_CHECKING

from windtunnel.errors import WindtunnelError

if TYPE_CHECKING:
    from windtunnel.real.emulate.journal import Journal


def error_document(error: BaseException) -> dict[str, object]:
    """What the parent says of an error: message, place in the script, traceback."""
    from windtunnel.real.capture.processes.script_errors import place_in_script, traceback_of_script

    place = place_in_script(error.__traceback__)
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, WindtunnelError):
        return {"status": "refused", "message": text, "place": place}
    message = f"{type(error).__name__}: {text[:600]}"
    if "torch._C" in text and "_cuda_" in text:  # what `torch.cuda` says where it was built without
        message += (
            ": this PyTorch has no CUDA, and `run` runs the rank for real; ask torch.cuda.is_available() first, or let"
            " `windtunnel capture` pretend GPUs"
        )
    outcome: dict[str, object] = {"status": "raised", "message": message, "place": place}
    outcome["traceback"] = traceback_of_script(error)
    if is_out_of_memory(error):
        frames = [f"{at.filename}:{at.lineno} {at.name}" for at in traceback.extract_tb(error.__traceback__)]
        outcome |= {"status": "out of memory", "stack": frames[::-1][:24], "op": frames[-1] if frames else ""}
    return outcome


def is_out_of_memory(error: BaseException) -> bool:
    """Of the device or of the host."""
    name, text = type(error).__name__, str(error)
    return name in ("OutOfMemoryError", "MemoryError") or (
        name == "RuntimeError" and ("not enough memory" in text or "can't allocate memory" in text)
    )


def facts_of(journal: Journal) -> dict[str, object]:
    """What a `Journal` has learnt, as JSON."""
    conductor = journal.conductor
    if conductor is None:
        return {"notes": journal.notes}
    from windtunnel.real.capture.processes.rank_process import resources_used
    from windtunnel.real.emulate.peers.peer_times import document
    from windtunnel.real.emulate.timeline import events_of_peer, events_of_real

    events: list[object] = []
    if journal.last is not None:
        events += events_of_real(conductor.rank, journal.last)
        for rank, watched in conductor.last_watched.items():
            factor = conductor.slow.get(rank)
            events += events_of_peer(rank, watched, f"slow by {factor:g}" if factor else "")
    memory = journal.memory
    if memory is None:
        memory = journal.device_peak.read() if "torch" in sys.modules else None
    return {
        "steps": conductor.n_steps,
        "step_s": journal.step_s,
        "blocked_s": journal.blocked_s,
        "profiled": journal.profiled,
        "kinds": {kind: [count, journal.kind_bytes[kind]] for kind, count in sorted(journal.kinds.items())},
        "control": dict(sorted(journal.control.items())),
        "settled_at": conductor.settled_at,
        "movement": conductor.movement if conductor.movement != float("inf") else None,
        "unplanned": conductor.unplanned,
        "planned": conductor.planned,
        "behind_s": journal.own.behind + journal.own.given_up if journal.own is not None else 0.0,
        "replayed_step_s": conductor.replayed_step_s,
        "memory": memory.to_dict() if memory is not None else None,
        "peak_rss_bytes": resources_used()[1],
        "events": events,
        "times": document(program, conductor.world_size) if (program := conductor.typical()) is not None else None,
        "notes": journal.notes,
        "technique": journal.technique.to_dict() if journal.technique is not None else None,
        "cpu_s": time.process_time(),
        "without_program": conductor.company.not_alike if conductor.company is not None else 0,
    }
