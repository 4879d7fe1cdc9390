"""A storm of faults on a real API server and kube-scheduler: what is given twice, bound in part, or never bound.

    python bench/kubernetes_storm.py [--seconds 150] [--seed 0]

Two steerers, kube-scheduler and the API server are killed in turn (SIGKILL). etcd stalls, and nodes vanish with their
pods. Pods come and end all the while. The run ends only when every pod was bound and has ended.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from harness import save

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from tests.live.kubernetes.server import Server, find_assets  # noqa: E402
from tests.live.kubernetes.storm import Storm  # noqa: E402
from tests.live.kubernetes.world import World  # noqa: E402

from berth.live.kubernetes.access import from_kubeconfig  # noqa: E402
from berth.live.kubernetes.client import Api  # noqa: E402


async def stormed(server: Server, seconds: float, seed: int) -> Storm:
    """The storm when it is over."""
    kubeconfig = server.kubeconfig()
    async with Api(from_kubeconfig(kubeconfig)) as api:
        world = World(api, kubeconfig)
        await world.clean()
        storm = Storm(world, server, seed)
        await storm.run(seconds)
        return storm


def main() -> None:
    """Storm, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    assets = find_assets()
    if isinstance(assets, str):
        raise SystemExit(assets)
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
        server = Server(assets, Path(folder))
        try:
            server.start()
            if why := server.start_scheduler():
                raise SystemExit(why)
            storm = asyncio.run(stormed(server, chosen.seconds, chosen.seed))
        finally:
            server.stop()
    found = {
        "faults": dict(storm.faults),
        "pods_ended": storm.ended,
        "looks": storm.looks,
        "parts_given_twice": storm.given_twice,
        "longest_gang_in_part_s": round(storm.longest_half_s, 1),
        "bound_without_berth": storm.without_berth,
        "load": os.getloadavg()[0],
    }
    for name, value in found.items():
        print(f"{name}: {value}")
    print("all pods were bound and have ended")
    save("kubernetes_storm", {**vars(chosen), **found})


if __name__ == "__main__":
    main()
