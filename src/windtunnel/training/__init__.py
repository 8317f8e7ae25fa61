"""Training: a Plan of a model on a cluster, lowered to a graph, priced and replayed."""

from windtunnel.training.plan import Plan, read_plan
from windtunnel.training.predict import predict

__all__ = ["Plan", "predict", "read_plan"]
