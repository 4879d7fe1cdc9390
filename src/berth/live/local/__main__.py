"""The broker as a process: `python -m berth.live.local`, which `berth up` starts."""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any

from berth.errors import LiveError
from berth.live.driver.defaults import DEFAULT_GROW, DEFAULT_KNOWLEDGE, MACHINE_POLICY
from berth.live.local.broker import Broker
from berth.live.local.cards import Card, Cards, fake_gpus
from berth.live.local.deciding import Chosen
from berth.live.local.keeping import RECORD_S
from berth.live.local.link import BRAIN, DECIDE_S
from berth.live.local.log import Log
from berth.live.local.places import Places, state_folder
from berth.live.local.request import PER_GPU
from berth.live.local.runs import Run, boot_id
from berth.live.local.service import Service
from berth.live.local.store import Store, of_meta
from berth.partition.reconciling import ANSWERS

GOING_DOWN_S = 10.0


def hold_lock(places: Places) -> int:
    """The lock of the store, for as long as this process lives; LiveError where another broker has it."""
    lock = os.open(places.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    until = time.monotonic() + GOING_DOWN_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError as error:
            pid = os.pread(lock, 32, 0).decode().strip() or "unknown"
            # One without a socket begins or goes down. One that was killed while it started a process leaves the
            # lock to that process, until it has become its program.
            if time.monotonic() < until and not (os.path.exists(places.socket) and _lives(pid)):
                time.sleep(0.02)
                continue
            os.close(lock)
            raise LiveError(
                f"another broker (process {pid}) has the store {places.store}; end it with `berth down`, or name"
                " another folder with BERTH_STATE"
            ) from error
    os.ftruncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())
    return lock


def _lives(pid: str) -> bool:
    return pid.isdecimal() and os.path.exists(f"/proc/{pid}")


async def serve(options: argparse.Namespace, log: Log, places: Places) -> None:
    store = Store(places.store, report=lambda text: log("store-mended", what=text))
    settings = _settings(options, store, places)
    fake = settings.get("fake_gpus")
    if fake:
        os.environ.update(fake_gpus(fake))
        os.environ["BERTH_FAKE_CARD"] = places.fake_card
    cards = Cards(
        fake=bool(fake),
        none=bool(settings.get("no_gpus")) and not fake,
        before=_cards_before(store, settings),
    )
    fields = [[card.uuid, card.model, card.mem_mib] for card in cards.cards]
    store.write([of_meta("cards", {"boot": boot_id(), "of": _of_gpus(settings), "cards": fields})])
    own = ":" in (options.policy or "") + (options.knowledge or "")
    chosen = Chosen(
        options.policy or store.meta("policy", MACHINE_POLICY),
        options.knowledge or store.meta("knowledge", DEFAULT_KNOWLEDGE),
        (os.getcwd(),) if own else tuple(store.meta("paths", [])),
    )
    broker = Broker(
        places,
        store,
        cards,
        log,
        cpus=settings.get("cpus"),
        brain=options.brain,
        decide_s=options.decide_s,
        record_s=options.record_s,
        metrics=options.metrics,
        uncounted=settings.get("uncounted") or "report",
        grow=settings.get("grow") or DEFAULT_GROW,
        per_gpu=int(settings.get("per_gpu") or PER_GPU),
        chosen=chosen,
    )
    service = Service(broker)
    try:
        await broker.run(
            service.serve, service.listing.measured, anew=bool(options.policy or options.knowledge)
        )
    finally:
        options.new_folder &= not broker.began and broker.book.next_number == 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # all is written; a thread that waits for a driver would keep the lock


def _settings(options: argparse.Namespace, store: Store, places: Places) -> dict[str, Any]:
    """What this queue runs on: as the options say, else as before. LiveError where other GPUs are asked for while jobs
    run on those of before."""
    before = dict(store.meta("settings", {}))
    settings = dict(before)
    for name in ("fake_gpus", "no_gpus", "cpus", "uncounted", "grow", "per_gpu"):
        if getattr(options, name) not in (None, False):
            settings[name] = getattr(options, name)
    if options.fake_gpus:
        fake_gpus(options.fake_gpus)  # refused before it is kept
        settings.pop("no_gpus", None)
    elif options.no_gpus:
        settings.pop("fake_gpus", None)
    if before and _of_gpus(before) != _of_gpus(settings):
        running = [
            entry.id
            for entry in store.live()
            if entry.slots and Run(places.runs, entry.id, entry.start).shim_lives()
        ]
        if running:
            raise LiveError(
                f"jobs run on {before.get('fake_gpus') or 'the GPUs'} that this queue had ({', '.join(running[:5])});"
                " start it with those, and change them when the jobs have ended"
            )
        if os.path.exists(places.fake_card):
            os.unlink(places.fake_card)  # it has the cards of before
    store.write([of_meta("settings", settings)])
    return settings


def _of_gpus(settings: Mapping[str, Any]) -> list[Any]:
    """Which GPUs it is a queue of."""
    return [settings.get(name) for name in ("fake_gpus", "no_gpus")]


def _cards_before(store: Store, settings: Mapping[str, Any]) -> list[Card]:
    """The cards that this queue had since the machine started, so that one that has fallen off the bus is known."""
    saved = store.meta("cards")
    if (
        not saved
        or saved["boot"] != boot_id()
        or saved["of"] != _of_gpus(settings)
        or settings.get("no_gpus")
    ):
        return []
    return [Card(index, *fields) for index, fields in enumerate(saved["cards"])]


def main() -> None:
    parser = argparse.ArgumentParser(prog="berth-broker")
    parser.add_argument("--policy")
    parser.add_argument("--knowledge")
    parser.add_argument("--fake-gpus")
    parser.add_argument("--metrics", default="")
    parser.add_argument("--no-gpus", action="store_true")
    parser.add_argument("--cpus", type=float)
    parser.add_argument("--grow", choices=("off", "on", "suspend"))
    parser.add_argument("--per-gpu", type=int)
    parser.add_argument("--uncounted", choices=ANSWERS)
    parser.add_argument("--foreground", action="store_true")
    parser.add_argument(
        "--new-folder",
        action="store_true",
        help="Remove the state folder if the start is refused before it has a job.",
    )
    parser.add_argument("--brain", default=BRAIN, help="The module that decides; another one in tests.")
    parser.add_argument("--decide-s", type=float, default=DECIDE_S, help="Seconds for one decision.")
    parser.add_argument(
        "--record-s", type=float, default=RECORD_S, help="Seconds between batches of records."
    )
    options = parser.parse_args()
    places = Places(state_folder())
    if "BERTH_ROOT" not in os.environ and os.geteuid() != 0:
        os.environ["BERTH_ROOT"] = f"/dev/shm/berth-{os.geteuid()}"  # the other is root's
    lock = None
    try:
        places.check()
        options.new_folder |= places.make()
        lock = hold_lock(places)
        options.new_folder &= not os.path.exists(places.store)  # else another broker began with it
        asyncio.run(serve(options, Log(None if options.foreground else places.log), places))
        os.close(lock)
    except (LiveError, OSError) as error:
        if options.new_folder and lock is not None:
            shutil.rmtree(places.folder, ignore_errors=True)
        print(f"berth: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
