"""The scheduler: a queue, a cluster and a policy, whichever driver calls it; it knows no clock.

The simulator (`berth.engine`) and the live drivers are its callers. They report what happens and when, and ask it to
`decide`. What is on the cluster is what was decided; whether a process exists is the caller's business.
"""

from berth.scheduler.outcomes import (
    Evicted,
    NeverFits,
    Outcome,
    Refused,
    Resized,
    Resumed,
    Suspended,
)
from berth.scheduler.scheduler import Attempts, Scheduler, Trial
from berth.scheduler.starts import Held, Learned, StartForecast, StartInterval
