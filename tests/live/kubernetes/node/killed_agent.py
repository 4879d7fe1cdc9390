"""`killed_agent.py FOLDER CARDS`: gives and takes back parts, killed before each file that it makes, moves or removes.

After each kill a new agent takes over, is looked at, and goes on to the end. Prints how many kills there were, and what
was wrong after them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from berth.live.kubernetes.node.allotments import CLOSED_MIB, Allotment, Allotments, Holder, Part
from berth.live.local.cards import Card
from berth.partition import find

MOVES = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree")


def pod(name: str, gpu: int, mem_mib: int) -> Allotment:
    holder = Holder("default", name, f"uid-{name}", "main")
    return Allotment(f"dp-{name}", holder, (Part(gpu, mem_mib, 300),), (f"gpu0-{name}",), (1 - gpu,))


def claim(name: str, *sizes: int) -> list[Allotment]:
    holder = Holder("default", name, f"uid-{name}")
    return [
        Allotment(f"uid-{name}.{at}", holder, (Part(1, size, 200),), of=len(sizes))
        for at, size in enumerate(sizes)
    ]


STEPS: tuple[Callable[[Allotments], None], ...] = (
    lambda there: there.give(pod("a", 0, 50_000)),
    lambda there: there.give(*claim("b", 20_000, 30_000)),
    lambda there: there.give(pod("c", 0, 30_000)),
    lambda there: there.take_back("dp-a"),
    lambda there: there.give(pod("d", 0, 50_000)),  # what a had
    lambda there: [there.take_back(f"uid-b.{at}") for at in range(2)] and None,
    lambda there: there.give(*claim("e", 80_000)),
)


def run(folder: Path, cards: list[Card], kill_at: int) -> None:
    """Do the steps that are not done yet; killed before the file of that number."""
    count = 0

    def hook(event: str, _: object) -> None:
        nonlocal count
        if event in MOVES:
            count += 1
            if count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    done = folder / "done"
    there = Allotments(folder / "state", folder / "regions", cards, folder / "nodes")
    sys.addaudithook(hook)
    there.load()
    for at in range(int(done.read_text()), len(STEPS)):
        STEPS[at](there)
        (folder / "next").write_text(str(at + 1))
        (folder / "next").replace(done)


def wrong(folder: Path, cards: list[Card]) -> list[str]:
    """What a new agent finds that must not be."""
    there = Allotments(folder / "state", folder / "regions", cards, folder / "nodes")
    there.load()
    found = list(there.damaged)
    given_mib = dict.fromkeys(range(len(cards)), 0)
    for each in there.given.values():
        wanted = {part.index: part.mem_mib for part in each.parts} | dict.fromkeys(each.closed, CLOSED_MIB)
        uuids = {card.uuid.removeprefix("GPU-").lower(): card.index for card in cards}
        held = {uuids[part.uuid]: part.limit_bytes >> 20 for part in find(each.name, there.root)}
        if held != wanted:
            found.append(f"{each.name} is held to {held}, and was given {wanted}")
        for part in each.parts:
            given_mib[part.index] += part.mem_mib
    regions = {path.name for path in (folder / "regions").iterdir() if not path.name.startswith(".")}
    if left := regions - there.given.keys():
        found.append(f"regions without a pod: {left}")
    found += [f"GPU {gpu} is given {mib} MiB" for gpu, mib in given_mib.items() if mib > cards[gpu].mem_mib]
    return found


def main() -> None:
    os.fsync = lambda handle: None  # a kill loses nothing that was written
    top, cards = Path(sys.argv[1]), [Card(*each) for each in json.loads(sys.argv[2])]
    kills, found = 0, []
    while True:
        folder = top / "run"
        folder.mkdir()
        (folder / "done").write_text("0")
        child = os.fork()
        if not child:
            run(folder, cards, kills + 1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) == 0:
            break
        kills += 1
        found += [f"kill {kills}: {each}" for each in wrong(folder, cards)]
        run(folder, cards, 0)
        found += [f"after kill {kills}: {each}" for each in wrong(folder, cards)]
        there = Allotments(folder / "state", folder / "regions", cards, folder / "nodes")
        there.load()
        if sorted(there.given) != ["dp-c", "dp-d", "uid-e.0"]:
            found.append(f"kill {kills} ends with {sorted(there.given)}")
        for name in list(there.given):
            there.take_back(name)
        shutil.rmtree(folder)
    print(json.dumps([kills, found]))


if __name__ == "__main__":
    main()
