"""Training: a Plan of a model on a cluster, lowered to a graph, priced and replayed."""

from windtunnel.studies.training.plan import Plan, read_plan
from windtunnel.studies.training.predict import predict

__all__ = ["Plan", "predict", "read_plan"]
