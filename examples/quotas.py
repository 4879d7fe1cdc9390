"""Give two teams quotas on one cluster: kept strictly, and with idle GPUs lent."""

import berth

MINUTE_MS = 60_000
jobs = sorted(
    [
        *(
            berth.Job(f"vision-{n}", n * MINUTE_MS, 60 * MINUTE_MS, virtual_cluster="vision")
            for n in range(40)
        ),
        *(
            berth.Job(f"speech-{n}", (120 + n) * MINUTE_MS, 60 * MINUTE_MS, virtual_cluster="speech")
            for n in range(8)
        ),
    ],
    key=lambda job: job.submit_ms,
)
for borrow in (False, True):
    result = berth.compare(
        jobs, "fifo+best-fit", cluster="2x8:V100", quotas={"vision": 8, "speech": 8}, borrow=borrow
    )
    (run,) = result.runs
    print(
        f"{'lent' if borrow else 'kept apart':10} mean wait {run.summary.waiting_time_s.mean / 60:5.1f} minutes,"
        f" Jain's index by team {run.summary.jain_virtual_clusters:.3f}"
    )
