"""Run two jobs that share one GPU and slow each other, and print what happens, event by event."""

from collections.abc import Sequence

from berth import Cluster, GpuModel, Job, Node, Share, simulate
from berth.interference import Outlook, Tenant


def half_speed(tenants: Sequence[Tenant], gpu: GpuModel | None) -> Outlook:
    """Alone at full speed, together at 60 % each."""
    return Outlook((1000,) if len(tenants) == 1 else (600,) * len(tenants))


cluster = Cluster([Node("workstation", gpus=1, gpu_model=GpuModel("T4", mem_mib=15_360))])
jobs = [
    Job("train", submit_ms=0, work_ms=60_000, share=Share(500, 8_000)),
    Job("serve", submit_ms=20_000, work_ms=12_000, share=Share(500, 4_000)),
]
for event in simulate(jobs, cluster, "first-fit", interference=half_speed):
    print(f"{event.time_ms / 1000:5.1f} s  {event.kind:<6}  {event.job.id}")
