"""Price the same jobs on fast cards and on cheap ones, energy and CO₂ included."""

import random

import berth
from berth.card_speeds import CardSpeeds
from berth.model import Job
from berth.statistics.cost import Prices, Watts

HOUR_MS = 3_600_000
draw = random.Random(5)
jobs = [
    Job(f"job{number}", number * HOUR_MS // 20, draw.choice((1, 2, 4)) * HOUR_MS // 2, application="train")
    for number in range(200)
]
# A T4 does two fifths of what a V100 does in the same time.
speeds = CardSpeeds({"": {"T4": 400, "V100": 1000}})
prices = Prices(
    currency="EUR",
    gpu_hour={"t4": 0.35, "v100": 1.20},
    kwh=0.30,
    co2_g_per_kwh=380,
    gpu_watts={"t4": Watts(10, 70), "v100": Watts(35, 250)},
)
for cluster in ("4x8:T4", "2x8:V100"):
    run = berth.compare(jobs, ["fifo"], cluster=cluster, speeds=speeds, prices=prices).runs[0]
    summary = run.summary
    print(
        f"{cluster:9} done after {summary.makespan_s / 3600:4.1f} h: {summary.cost:6.2f} EUR,"
        f" {summary.energy_kwh:5.2f} kWh, {summary.co2_kg:5.2f} kg of CO₂"
    )
