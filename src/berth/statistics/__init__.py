"""Events to metrics: pure functions on the columns of one run, and intervals over the seeds of many.

`event_columns` turns what `simulate` yields into arrays; `summarise` computes every metric on them; `run_of`
keeps what a report is made from.
"""

from berth.statistics.columns import AttemptColumns, EventColumns, event_columns
from berth.statistics.comparison import Mark, Standing, answers, best_sentence, lead, standings
from berth.statistics.measures import (
    GpuHours,
    bounded_slowdown,
    busy_gpu_ms,
    completion_time_s,
    ended_with,
    events_by_reason,
    fragmentation_pct,
    goodput_pct,
    gpu_allocation_arriving_pct,
    gpu_allocation_pct,
    gpu_busy_pct,
    gpu_hours,
    gpu_utilisation_pct,
    makespan_s,
    queueing_delay_s,
    waiting_time_s,
)
from berth.statistics.metrics import (
    HEADLINES,
    METRICS,
    REAL_USE,
    Metric,
    Unit,
    headlines_of,
    matter_most,
    metrics_of,
    readable_unit,
)
from berth.statistics.real_use import RealUse, attempts_of, real_use
from berth.statistics.run import Film, Run, Schedule, Timeline, run_of, timeline
from berth.statistics.spread import (
    Cdf,
    Distribution,
    Interval,
    cdf,
    confidence_interval_95,
    distribution,
    paired_difference_95,
    student_t_quantile,
)
from berth.statistics.summary import (
    Summary,
    finish_time_fairness,
    jain_index,
    service,
    summarise,
    summary_dict,
)
