"""Starts a broker in the background and waits until it decides: `berth up`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable

from berth.errors import LiveError
from berth.live.local.boot import Systemd, starter
from berth.live.local.boot import uninstall as take_away
from berth.live.local.places import Places, check_metrics, state_folder
from berth.live.local.protocol import Flags, Message, ask
from berth.partition.reconciling import ANSWERS

BEGIN_S = 30.0
READY_S = 300.0


def up(values: Flags, as_json: bool) -> None:
    """Start the queue of this state folder; says so where it is up already."""
    places = Places(state_folder())
    places.check()
    if as_json and values.get("foreground"):
        raise LiveError("--foreground prints no answer; leave --json out")
    words = [sys.executable, "-m", "berth.live.local", *_words(values)]
    if values.get("foreground"):
        os.execv(sys.executable, words)
    answer = _status(places)
    if answer is not None:
        _up_already(values, answer, as_json)
        return
    if places.make():
        words.append("--new-folder")
    log = os.open(places.log + ".start", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    process = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
    )
    until = time.monotonic() + BEGIN_S
    while (answer := _status(places)) is None:
        if process.poll() is not None and (answer := _status(places)) is not None:
            break  # another one was faster
        _check_alive(process, log)
        if time.monotonic() > until:
            raise LiveError(f"the broker does not answer; see {places.log}")
        time.sleep(0.02)
    if answer["pid"] != process.pid:  # another process was faster
        _up_already(values, answer, as_json)
        return
    answer = _wait_for_brain(places, answer, lambda: _check_alive(process, log))
    _print(answer, "is up", as_json)


def install(given: Flags, configured: Flags, as_json: bool) -> None:
    """Have the queue start with the machine, with the options that were given, and start it now.

    Raises LiveError if neither systemd nor cron takes it.
    """
    places, values = Places(state_folder()), {**configured, **given}
    places.check()
    if values.get("foreground"):
        raise LiveError("--install starts the queue as a service; leave --foreground out")
    boot, why = starter()
    if why:
        print(f"berth: {why}", file=sys.stderr)
    service = isinstance(boot, Systemd)
    if isinstance(boot, Systemd) and _status(places) is not None and not boot.runs():
        raise LiveError("the queue is up already, but not as a service. First: berth down (its jobs go on)")
    for line in boot.install(_words(given)):
        print(line, file=sys.stderr if as_json else sys.stdout)
    if not service:
        up(values, as_json)
        return
    answer = _status(places)
    if answer is None:
        raise LiveError(f"systemd has started the queue, but it does not answer; see {places.log}")
    _print(_wait_for_brain(places, answer, lambda: None), "is up", as_json)


def uninstall() -> None:
    """Take away what starts the queue with the machine, and stop the queue; its jobs go on."""
    for line in take_away():
        print(line)
    if _status(places := Places(state_folder())) is None:
        return  # systemd has stopped it
    ask(places.socket, {"do": "down"})
    print("the queue goes down; its jobs go on")


def _words(values: Flags) -> list[str]:
    words = []
    for key in ("policy", "knowledge", "fake_gpus", "cpus", "metrics", "uncounted", "grow", "per_gpu"):
        if key in values:
            words += [f"--{key.replace('_', '-')}", str(values[key])]
    return [*words, *(f"--{key.replace('_', '-')}" for key in ("no_gpus", "foreground") if values.get(key))]


def check(values: Flags) -> None:
    """Refuse what could never be served; LiveError says what is wrong."""
    if "metrics" in values:
        check_metrics(str(values["metrics"]))
    if values.get("grow", "off") not in ("off", "on", "suspend"):
        raise LiveError(f"--grow '{values['grow']}'; there are off, on and suspend")
    if values.get("uncounted", "report") not in ANSWERS:
        raise LiveError(f"--uncounted '{values['uncounted']}'; there are {', '.join(ANSWERS)}")
    if "cpus" in values and not re.fullmatch(r"\d+(\.\d+)?", str(values["cpus"])):
        raise LiveError(f"--cpus '{values['cpus']}'; expected a number of CPU cores, such as 8")
    if "per_gpu" in values and not re.fullmatch(r"[1-9]\d{0,2}", str(values["per_gpu"])):
        raise LiveError(f"--per-gpu '{values['per_gpu']}'; expected a number of jobs, 1 to 999")
    if values.get("no_gpus") and "fake_gpus" in values:
        raise LiveError("--no-gpus and --fake-gpus exclude each other; leave one out")


def _up_already(values: Flags, answer: Message, as_json: bool) -> None:
    """Say that a queue is up; LiveError where it differs from what was asked for."""
    had = answer["settings"]
    differ = []
    for key in ("fake_gpus", "cpus", "metrics", "uncounted", "grow", "per_gpu"):
        if key in values and str(had.get(key) or "") != str(values[key]):
            before = had.get(key)
            differ.append(f"--{key.replace('_', '-')} {values[key]}, and it has {before or 'none'}")
    if values.get("no_gpus") and not had.get("no_gpus"):
        differ.append("--no-gpus, and it has GPUs")
    if differ:
        raise LiveError(f"the queue is up already: you ask for {'; '.join(differ)}. First: berth down")
    for key in ("policy", "knowledge"):
        if key in values and values[key] != answer[key]:
            raise LiveError(
                f"the queue is up already, with --{key} {answer[key]}; change it with: berth policy"
                f" {'--knowledge ' if key == 'knowledge' else ''}{values[key]}"
            )
    _print(answer, "is up already", as_json)


def _check_alive(process: subprocess.Popen[bytes], log: int) -> None:
    """LiveError with what it said where the broker has ended, unless another one is up."""
    if process.poll() is None:
        return
    if process.returncode == 0:
        raise LiveError("the queue was taken down while it started")
    lines = os.pread(log, 4000, 0).decode(errors="replace").strip().splitlines()
    raise LiveError((lines[-1] if lines else "the broker ended at once").removeprefix("berth: "))


def _wait_for_brain(places: Places, answer: Message, check: Callable[[], None]) -> Message:
    """Wait until the policy decides, with a line of progress for each step; on a terminal it counts the seconds."""
    began, shown = time.monotonic(), ""
    end = "" if sys.stderr.isatty() else "\n"
    try:
        while answer["brain"] != "ready" and (waited_s := time.monotonic() - began) < READY_S:
            check()
            if answer["trouble"] and answer["brain_restarts"]:
                break
            text = "loading the policy"
            if answer["brain"] == "compiling":
                text = "compiling the policy's kernels; the first time takes longer"
            if not end:
                text = f"\r{text}: {waited_s:.0f} s\x1b[K"
            if text != shown:
                print(text, end=end, file=sys.stderr, flush=True)
            shown = text
            time.sleep(0.05)
            answer = _status(places) or answer
    finally:
        if shown and not end:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return answer


def _status(places: Places) -> Message | None:
    try:
        return ask(places.socket, {"do": "status"})
    except LiveError:
        return None


def _print(answer: Message, what: str, as_json: bool) -> None:
    if as_json:
        import json

        print(json.dumps(answer))
        return
    from berth.live.driver.words import mib

    gpus = answer["gpus"]
    models = ", ".join(sorted({f"{gpu['model']} ({mib(gpu['mem_mib'])})" for gpu in gpus}))
    fake = "fake " if answer["fake"] else ""
    there = f"{len(gpus)} {fake}{'GPU' if len(gpus) == 1 else 'GPUs'}: {models}"
    there = there if gpus else "no GPUs"
    print(f"the queue {what}: {there}; {answer['policy']} decides")
    for text in answer["trouble"]:
        print(f"berth: {text}", file=sys.stderr)
