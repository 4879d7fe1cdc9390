"""The best possible: what no policy can be better than, exactly or as a bound.

`batch` is about one moment: the most GPU that a batch of jobs can be given at once. `total_time` is about a whole
queue on GPUs that jobs share: no schedule ends sooner.
"""

from berth.bounds.batch import Optimum, optimum, pooled_milli, reachable, relaxed_milli

__all__ = ["Optimum", "optimum", "pooled_milli", "reachable", "relaxed_milli"]
