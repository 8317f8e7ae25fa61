"""A wind tunnel for AI clusters: what a training step costs at any scale, how sure that is, and why.

    import windtunnel

    result = windtunnel.predict(
        "llama-3.1-405b", "h100-sxm:8192", {"tp": 8, "pp": 16, "cp": 2, "global_batch": 1536, "seq_len": 8192}
    )
    result.step_time_s, result.mfu, result.breakdown_ns

Names are loaded when first used: `import windtunnel` alone brings in nothing but itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windtunnel.errors import (
        InputFileError,
        LayoutError,
        ScheduleError,
        SpecError,
        UnknownNameError,
        UserError,
        WindtunnelError,
    )
    from windtunnel.evidence.accuracy import run_validation
    from windtunnel.faces.report.comparison.compare import compare
    from windtunnel.faces.report.documents import first_table, notebook_html, pictures, write_report
    from windtunnel.faces.report.run_folder import load as load_result
    from windtunnel.faces.report.run_folder import save as save_result
    from windtunnel.physics.hardware import Cluster, parse_cluster
    from windtunnel.physics.model import Model, load_model
    from windtunnel.physics.step.result import Result
    from windtunnel.questions import ask
    from windtunnel.questions.asked.parts.scenario import Scenario
    from windtunnel.real.calibrate.run import calibrate
    from windtunnel.real.capture.question import capture
    from windtunnel.studies.fleet.study import fleet
    from windtunnel.studies.planning.advice.advise import advise
    from windtunnel.studies.planning.plan import plan
    from windtunnel.studies.programs.predict import predict_captured
    from windtunnel.studies.serving import Deployment, ServingResult, Workload, serve
    from windtunnel.studies.serving.spot.study import serve_on_spot
    from windtunnel.studies.survive import survive
    from windtunnel.studies.sweeps.sweep import sweep
    from windtunnel.studies.techniques import predict_with
    from windtunnel.studies.traces.explain import explain
    from windtunnel.studies.training.op_table import op_table
    from windtunnel.studies.training.plan import Plan, read_plan
    from windtunnel.studies.training.predict import predict
    from windtunnel.studies.whatif import ask_again as whatif

    __version__: str

# Public name -> (module, name there).
_HOME = {
    "Cluster": ("physics.hardware", "Cluster"),
    "Deployment": ("studies.serving", "Deployment"),
    "InputFileError": ("errors", "InputFileError"),
    "LayoutError": ("errors", "LayoutError"),
    "Model": ("physics.model", "Model"),
    "Plan": ("studies.training.plan", "Plan"),
    "Result": ("physics.step.result", "Result"),
    "Scenario": ("questions.asked.parts.scenario", "Scenario"),
    "ScheduleError": ("errors", "ScheduleError"),
    "ServingResult": ("studies.serving", "ServingResult"),
    "SpecError": ("errors", "SpecError"),
    "UnknownNameError": ("errors", "UnknownNameError"),
    "UserError": ("errors", "UserError"),
    "WindtunnelError": ("errors", "WindtunnelError"),
    "Workload": ("studies.serving", "Workload"),
    "advise": ("studies.planning.advice.advise", "advise"),
    "ask": ("questions", "ask"),
    "calibrate": ("real.calibrate.run", "calibrate"),
    "capture": ("real.capture.question", "capture"),
    "compare": ("faces.report.comparison.compare", "compare"),
    "explain": ("studies.traces.explain", "explain"),
    "fleet": ("studies.fleet.study", "fleet"),
    "load_model": ("physics.model", "load_model"),
    "load_result": ("faces.report.run_folder", "load"),
    "first_table": ("faces.report.documents", "first_table"),
    "notebook_html": ("faces.report.documents", "notebook_html"),
    "pictures": ("faces.report.documents", "pictures"),
    "op_table": ("studies.training.op_table", "op_table"),
    "parse_cluster": ("physics.hardware", "parse_cluster"),
    "plan": ("studies.planning.plan", "plan"),
    "predict": ("studies.training.predict", "predict"),
    "predict_captured": ("studies.programs.predict", "predict_captured"),
    "predict_with": ("studies.techniques", "predict_with"),
    "read_plan": ("studies.training.plan", "read_plan"),
    "run_validation": ("evidence.accuracy", "run_validation"),
    "save_result": ("faces.report.run_folder", "save"),
    "sweep": ("studies.sweeps.sweep", "sweep"),
    "serve": ("studies.serving", "serve"),
    "serve_on_spot": ("studies.serving.spot.study", "serve_on_spot"),
    "survive": ("studies.survive", "survive"),
    "whatif": ("studies.whatif", "ask_again"),
    "write_report": ("faces.report.documents", "write_report"),
}
__all__ = [
    "Cluster",
    "Deployment",
    "InputFileError",
    "LayoutError",
    "Model",
    "Plan",
    "Result",
    "Scenario",
    "ScheduleError",
    "ServingResult",
    "SpecError",
    "UnknownNameError",
    "UserError",
    "WindtunnelError",
    "Workload",
    "advise",
    "ask",
    "calibrate",
    "capture",
    "compare",
    "explain",
    "first_table",
    "fleet",
    "load_model",
    "load_result",
    "notebook_html",
    "op_table",
    "parse_cluster",
    "pictures",
    "plan",
    "predict",
    "predict_captured",
    "predict_with",
    "read_plan",
    "run_validation",
    "save_result",
    "serve",
    "serve_on_spot",
    "survive",
    "sweep",
    "whatif",
    "write_report",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("windtunnel")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, there = _HOME[name]
    return getattr(import_module(f"{__name__}.{module}"), there)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
