"""The main job: the same trace through several policies, side by side."""

from berth.experiments.compare.comparison import Comparison, compare
from berth.experiments.compare.conditions import Conditions
from berth.experiments.compare.sweep import Task, run_task
