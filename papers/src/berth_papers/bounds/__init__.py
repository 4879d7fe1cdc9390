"""The best possible: what no policy can be better than, exactly or as a bound.

`batch` is about one moment: the most GPU that a batch of jobs can be given at once. `held` is about a stretch of time:
the most GPU that a cluster can have given to what came. `total_time` and `exact` are about
a whole queue on a GPU that jobs share: a bound that no schedule ends below, and the shortest schedule of a few jobs.
"""

from berth_papers.bounds.batch import Optimum, optimum, pooled_milli, reachable, relaxed_milli
from berth_papers.bounds.exact import Exact, least_total_time
from berth_papers.bounds.held import most_held_pct
from berth_papers.bounds.highs import check_solver
from berth_papers.bounds.total_time import TimeBound, time_bound
