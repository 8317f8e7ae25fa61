"""One rank's step as a flat list of tasks on lanes: what techniques rewrite, and the loop that plays it."""

from windtunnel.studies.techniques.flat.cut import chained, cut_tasks
from windtunnel.studies.techniques.flat.lower import FlatStep, lower_flat
from windtunnel.studies.techniques.flat.play import Lane, Timeline, play
from windtunnel.studies.techniques.flat.task import Task, Tasks

__all__ = ["FlatStep", "Lane", "Task", "Tasks", "Timeline", "chained", "cut_tasks", "lower_flat", "play"]
