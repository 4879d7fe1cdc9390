"""Let nodes fail, and compare goodput with and without checkpoints, restarts included."""

import berth
from berth.cluster.outages import FailureRate, Recovery

HOUR_MS = 3_600_000
failures = FailureRate(mtbf_ms=8 * HOUR_MS, mttr_ms=HOUR_MS // 4)
trace = berth.read_trace("synthetic:demo?jobs=150&seed=2")
for name, recovery in {
    "no checkpoints": Recovery(),
    "every hour": Recovery(checkpoint_ms=HOUR_MS, restart_ms=120_000),
    "every ten minutes": Recovery(checkpoint_ms=HOUR_MS // 6, restart_ms=120_000),
}.items():
    (run,) = berth.compare(trace, "fifo+best-fit", failures=failures, recovery=recovery).runs
    summary = run.summary
    lost = sum(summary.failures.values())
    print(f"{name:18} {lost:3} tries lost, goodput {summary.goodput_pct:5.1f} %, "
          f"utilisation {summary.gpu_utilisation_pct:4.1f} %")  # fmt: skip
