"""One plan, many simulations: policies, seeds, loads, sizes and conditions, each with each."""

from berth.experiments.sweep.plan import Plan, read_plan
from berth.experiments.sweep.run import Sweep, sweep
