"""Share one GPU among three applications: profiles decide which slows which, and which runs out of memory."""

from berth import Cluster, Job, Node, Share, simulate
from berth.interference import make_interference
from berth.profiles import THESIS_GPU, run_time_ms, thesis_profiles

profiles = thesis_profiles()
cluster = Cluster([Node("node", gpus=1, gpu_model=THESIS_GPU)])
jobs = [
    # Half of the card each; its memory is watched over time.
    Job(name, 0, run_time_ms(profiles[application]), application=application, share=Share(milli=500))
    for name, application in (("first", "LAMMPS"), ("second", "LAMMPS"), ("third", "GROMACS"))
]

for model in ("mps", "time-sliced"):
    print(model)
    for event in simulate(jobs, cluster, "first-fit", interference=make_interference(model)):
        if event.kind != "submit":
            print(f"  {event.time_ms / 1000:7.1f} s  {event.job.id:6} {event.kind} {event.reason}".rstrip())
