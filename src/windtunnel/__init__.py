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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windtunnel.accuracy import run_validation
    from windtunnel.calibrate.run import calibrate
    from windtunnel.capture.question import capture
    from windtunnel.cli.serve_spot import serve_on_spot
    from windtunnel.cli.whatif import ask_again as whatif
    from windtunnel.errors import (
        InputFileError,
        LayoutError,
        ScheduleError,
        SpecError,
        UnknownNameError,
        UserError,
        WindtunnelError,
    )
    from windtunnel.fleet.study import fleet
    from windtunnel.hardware import Cluster, parse_cluster
    from windtunnel.model import Model, load_model
    from windtunnel.planning.advice import advise
    from windtunnel.planning.plan import plan
    from windtunnel.programs.predict import predict_captured
    from windtunnel.report.comparison.compare import compare
    from windtunnel.report.prediction.views import notebook_html
    from windtunnel.report.prediction.views import write_report
    from windtunnel.report.run_folder import load as load_result
    from windtunnel.report.run_folder import save as save_result
    from windtunnel.result import Result
    from windtunnel.serving import Deployment, ServingResult, Workload, serve
    from windtunnel.step.scenario import Scenario
    from windtunnel.survive.question import survive
    from windtunnel.sweeps import sweep
    from windtunnel.techniques import predict_with
    from windtunnel.traces.explain import explain
    from windtunnel.training.op_table import op_table
    from windtunnel.training.plan import Plan, read_plan
    from windtunnel.training.predict import predict

    __version__: str

# Public name -> (module, name there).
_HOME = {
    "Cluster": ("hardware", "Cluster"),
    "Deployment": ("serving", "Deployment"),
    "InputFileError": ("errors", "InputFileError"),
    "LayoutError": ("errors", "LayoutError"),
    "Model": ("model", "Model"),
    "Plan": ("training.plan", "Plan"),
    "Result": ("result", "Result"),
    "Scenario": ("step.scenario", "Scenario"),
    "ScheduleError": ("errors", "ScheduleError"),
    "ServingResult": ("serving", "ServingResult"),
    "SpecError": ("errors", "SpecError"),
    "UnknownNameError": ("errors", "UnknownNameError"),
    "UserError": ("errors", "UserError"),
    "WindtunnelError": ("errors", "WindtunnelError"),
    "Workload": ("serving", "Workload"),
    "advise": ("planning.advice", "advise"),
    "calibrate": ("calibrate.run", "calibrate"),
    "capture": ("capture.question", "capture"),
    "compare": ("report.comparison.compare", "compare"),
    "explain": ("traces.explain", "explain"),
    "fleet": ("fleet.study", "fleet"),
    "load_model": ("model", "load_model"),
    "load_result": ("report.run_folder", "load"),
    "notebook_html": ("report.prediction.views", "notebook_html"),
    "op_table": ("training.op_table", "op_table"),
    "parse_cluster": ("hardware", "parse_cluster"),
    "plan": ("planning.plan", "plan"),
    "predict": ("training.predict", "predict"),
    "predict_captured": ("programs.predict", "predict_captured"),
    "predict_with": ("techniques", "predict_with"),
    "read_plan": ("training.plan", "read_plan"),
    "run_validation": ("accuracy", "run_validation"),
    "save_result": ("report.run_folder", "save"),
    "sweep": ("sweeps", "sweep"),
    "serve": ("serving", "serve"),
    "serve_on_spot": ("cli.serve_spot", "serve_on_spot"),
    "survive": ("survive.question", "survive"),
    "whatif": ("cli.whatif", "ask_again"),
    "write_report": ("report.prediction.views", "write_report"),
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
    "calibrate",
    "capture",
    "compare",
    "explain",
    "fleet",
    "load_model",
    "load_result",
    "notebook_html",
    "op_table",
    "parse_cluster",
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


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("windtunnel")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, there = _HOME[name]
    return getattr(import_module(f"{__name__}.{module}"), there)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
