"""Starts a broker in the background and waits until it decides: `berth up`."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from berth.errors import LiveError
from berth.live.local.places import Places, state_folder
from berth.live.local.protocol import Connection, Message
from berth.live.local.words import Parsed

__all__ = ["up"]

BEGIN_S = 30.0
READY_S = 300.0


def up(values: Parsed) -> int:
    """Start the queue of this state folder; says so where it is up already."""
    places = Places(state_folder())
    places.check()
    if values.get("json") and values.get("foreground"):
        raise LiveError("berth up: --foreground stays and has no answer; leave --json out")
    words = [sys.executable, "-m", "berth.live.local"]
    for key in ("policy", "knowledge", "fake_gpus", "cpus", "metrics"):
        if key in values:
            words += [f"--{key.replace('_', '-')}", str(values[key])]
    for key in ("no_gpus", "foreground"):
        if values.get(key):
            words.append(f"--{key.replace('_', '-')}")
    if values.get("foreground"):
        os.execv(sys.executable, words)
    answer = _status(places)
    if answer is not None:
        _say(values, answer, "is up already")
        return 0
    places.make()
    log = os.open(places.log + ".start", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    process = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
    )
    until = time.monotonic() + BEGIN_S
    while (answer := _status(places)) is None:
        if process.poll() is not None:
            said = os.pread(log, 4000, 0).decode(errors="replace").strip().splitlines()
            raise LiveError((said[-1] if said else "the broker ended at once").removeprefix("berth: "))
        if time.monotonic() > until:
            raise LiveError(f"the broker does not answer; see {places.log}")
        time.sleep(0.02)
    answer = _wait_for_brain(places, answer)
    _say(values, answer, "is up")
    return 0


def _wait_for_brain(places: Places, answer: Message) -> Message:
    """Wait until the policy decides, with a line of progress for people."""
    began, shown = time.monotonic(), ""
    words = {
        "loading": "loading the policy",
        "compiling": "compiling the policy's kernels; the first time takes longer",
    }
    try:
        while answer["brain"] != "ready" and time.monotonic() - began < READY_S:
            if answer["trouble"] and answer["brain_restarts"]:
                break
            text = words.get(str(answer["brain"]), "starting the policy")
            if sys.stderr.isatty():
                print(
                    f"\r\033[K{text} ({time.monotonic() - began:.0f} s)", end="", file=sys.stderr, flush=True
                )
            elif text != shown:
                print(text, file=sys.stderr)
            shown = text
            time.sleep(0.05)
            answer = _status(places) or answer
    finally:
        if sys.stderr.isatty() and shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
    return answer


def _status(places: Places) -> Message | None:
    try:
        connection = Connection(places.socket)
    except LiveError:
        return None
    try:
        return connection.ask({"do": "status"})
    except LiveError:
        return None
    finally:
        connection.close()


def _say(values: Parsed, answer: Message, what: str) -> None:
    if values.get("json"):
        import json

        print(json.dumps(answer))
        return
    from berth.live.local.tables import mib

    gpus = answer["gpus"]
    models = ", ".join(sorted({f"{gpu['model']} ({mib(gpu['mem_mib'])})" for gpu in gpus}))
    fake = "fake " if answer["fake"] else ""
    there = f"{len(gpus)} {fake}{'GPU' if len(gpus) == 1 else 'GPUs'}: {models}"
    there = there if gpus else "no GPUs"
    print(f"the queue {what}: {there}; {answer['policy']} decides")
    for text in answer["trouble"]:
        print(f"berth: {text}", file=sys.stderr)
