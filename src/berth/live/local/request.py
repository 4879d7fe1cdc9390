"""What a user asks for, read from the words of the command line and checked.

Sizes are those of `berth run` (`4G`), times those of Slurm (`2:00:00`, `1-12:00:00`, `30` minutes) or `90s`, `2h`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from itertools import product
from typing import Any

from berth.errors import LiveError
from berth.history.values.durations import slurm_s
from berth.partition.sizes import mem_mib

MOST_TASKS = 100_000
WHOLE = 1000
PER_GPU = 10
"""How many jobs that ask for GPU memory alone share a GPU at most, unless the queue says otherwise."""
SHARED_MILLI = WHOLE // PER_GPU
"""The part of a GPU that such a job asks for."""
LONGEST_NAME = 200

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_CLOCK = re.compile(r"(?:[0-9]{1,9}-)?[0-9]{1,9}(?::[0-9]{1,9}){0,2}")
_PLAIN = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_ARRAY = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NOTIFY_ON = ("start", "end", "fail", "out-of-memory")
_ADDRESS = re.compile(
    r"(?:slack:)?https?://\S+|(?:mailto:)?[^@\s:/]+@[^@\s:/]+|desktop|command:.*\S.*", re.DOTALL
)
_AFTER = re.compile(r"(?:(ok|fail|any):)?(\d+(?:_\d+)?)")


@dataclass(frozen=True, slots=True)
class Request:
    """What one job asks for; the tasks of an array share it."""

    argv: tuple[str, ...] = ()
    cwd: str = "/"
    env: str = ""
    """Key of its environment among the store's texts."""
    script: str = ""
    """Key of its script among the store's texts; empty: it is a command."""
    gpus: int = 1
    milli: int = WHOLE
    """Part of each GPU that it counts for."""
    mem_mib: int = 0
    """GPU memory on each GPU; 0: as much of it as its part of the card."""
    mem_max_mib: int = 0
    """How far that may grow while the job runs; 0: as the queue says (`Limits.most_mib`)."""
    mem_shows_max: bool = False
    """Whether its programs see a card of that size rather than of their limit."""
    core_pct: int = 0
    """Its part of the compute time; 0: not limited."""
    burst: bool = False
    """Whether it may use compute that no other job wants."""
    cpu_milli: int = 1000
    host_mem_mib: int = 0
    pins: tuple[int, ...] = ()
    """The only GPUs that it may run on; empty: any."""
    time_limit_ms: int | None = None
    estimate_ms: int | None = None
    grace_ms: int = 10_000
    retries: int = 3
    rerun: bool = False
    after: tuple[tuple[str, str], ...] = ()
    """Kind and id of the jobs that it waits for."""
    begin_ms: int = 0
    name: str = ""
    comment: str = ""
    priority: int = 0
    profile: str = ""
    output: str = ""
    error: str = ""
    image: str = ""
    """The container image that it runs in; empty: none."""
    gang: str = ""
    """The name of the gang that it is a task of, one of its user's; empty: none."""
    gang_starts: int = 0
    """How many tasks of its gang start together."""
    interactive: bool = False
    """Whether it leaves its GPUs while it is idle and others wait."""
    terminal: str = ""
    """The socket of the user's terminal, for an interactive job; empty: it has none."""
    notify: tuple[str, ...] = ()
    """Whom to tell: addresses of the web or of mail, `desktop`, `command:…`."""
    notify_on: tuple[str, ...] = ()
    """Of which events, of NOTIFY_ON."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """The jobs that one submission makes."""

    numbers: tuple[int, ...] | None
    """Array indices; None: one job that is no array."""
    params: tuple[tuple[tuple[str, str], ...], ...]
    """The parameters of each, in the order of `numbers`."""
    most: int = 0
    """How many run at a time at most; 0: any number."""


_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Request)}


def to_dict(request: Request) -> dict[str, Any]:
    """What JSON holds of it: all that is not the default."""
    return {
        name: value for name, default in _DEFAULTS.items() if (value := getattr(request, name)) != default
    }


def request_from_dict(values: Mapping[str, Any]) -> Request:
    known = {key: value for key, value in values.items() if key in _DEFAULTS}
    for key in ("argv", "pins", "notify", "notify_on"):
        if key in known:
            known[key] = tuple(known[key])
    if "after" in known:
        known["after"] = tuple((str(kind), str(job)) for kind, job in known["after"])
    return Request(**known)


def request_of(values: Mapping[str, Any], *, argv: Sequence[str], cwd: str, now_ms: int) -> Request:
    """The request that parsed flags make; LiveError says which flag is wrong and what it takes."""
    if not argv:
        raise LiveError("no command to run; write it last, as in: berth submit --mem 4G python train.py")
    gpus, milli, share = _gpus(values)
    mem, mem_max = _mem(values)
    core = _number(values, "core_pct", 0, 100)
    burst = False
    if core and "gpus" not in values:
        milli = max(1, core * 10)
    elif milli < WHOLE and share and not core:
        core, burst = max(1, milli // 10), True  # promised, and what no other job wants besides
    exclusive = bool(values.get("exclusive"))
    if exclusive:
        milli, mem, mem_max, core, burst = WHOLE, 0, 0, 0, False
    elif gpus and mem and "gpus" not in values and not core:
        milli = SHARED_MILLI
    if not gpus and (mem or mem_max or values.get("mem_shows_max") or core or exclusive or "gpu" in values):
        raise LiveError(
            "a job with --gpus 0 has no GPU: leave --mem, --mem-max, --mem-shows-max, --core-pct, --exclusive and"
            " --gpu out"
        )
    if mem_max and milli == WHOLE and not mem:
        raise LiveError(
            f"--mem-max {values['mem_max']}, but the job has whole GPUs; say with --mem what it begins with"
        )
    pins = _pins(values)
    if pins:
        if "gpus" not in values:
            gpus = len(pins)
        if gpus > len(pins):
            raise LiveError(f"--gpus {gpus}, but --gpu names only {len(pins)}; name as many")
    gang, gang_starts = _gang(values)
    interactive = bool(values.get("interactive"))
    if interactive and (gang or not gpus):
        raise LiveError(
            "--interactive is for a job that can leave its GPUs alone; leave it out with --gang or --gpus 0"
        )
    if gang and pins:
        raise LiveError(
            "--gang and --gpu exclude each other: the tasks of a gang run on any GPUs; leave one out"
        )
    notify, notify_on = _notify(values)
    name = str(values.get("name", ""))
    if len(name) > LONGEST_NAME or "\n" in name:
        raise LiveError(f"--name has {len(name)} characters; at most {LONGEST_NAME} in one line")
    cpus = _float(
        values, "cpus", 0.0 if gpus else 1.0
    )  # a job with GPUs waits for CPUs only if it asks for them
    return Request(
        argv=tuple(argv),
        cwd=os.path.join(cwd, str(values["chdir"])) if values.get("chdir") else cwd,
        gpus=gpus,
        milli=milli if gpus else WHOLE,
        mem_mib=mem,
        mem_max_mib=mem_max,
        mem_shows_max=bool(values.get("mem_shows_max")),
        core_pct=core,
        burst=burst,
        cpu_milli=round(cpus * 1000),
        host_mem_mib=_size(values, "host_mem"),
        pins=pins,
        time_limit_ms=duration_ms(str(values["time"]), "--time") if "time" in values else None,
        estimate_ms=duration_ms(str(values["estimate"]), "--estimate") if "estimate" in values else None,
        grace_ms=_grace_ms(str(values.get("grace", "10"))),
        retries=_number(values, "retries", 0, 1000, 3),
        rerun=bool(values.get("rerun")),
        after=_after(values),
        begin_ms=moment_ms(str(values["begin"]), now_ms) if "begin" in values else 0,
        name=name,
        comment=str(values.get("comment", "")),
        priority=_number(values, "priority", -1_000_000, 1_000_000),
        profile=str(values.get("profile", "")),
        output=str(values.get("output", "")),
        error=str(values.get("error", "")),
        image=_image(values),
        gang=gang,
        gang_starts=gang_starts,
        interactive=interactive,
        terminal=str(values.get("terminal", "")),
        notify=notify,
        notify_on=notify_on,
    )


def edited(request: Request, values: Mapping[str, Any], now_ms: int) -> Request:
    flags = _size_flags(request)
    if ".." in str(values.get("mem", "")):
        flags.pop("mem_max", None)
    new = request_of({**flags, **values}, argv=request.argv, cwd=request.cwd, now_ms=now_ms)
    changed: dict[str, Any] = {}
    if values.keys() & {"gpus", "mem", "mem_max", "core_pct", "exclusive"}:
        sizes = ("gpus", "milli", "mem_mib", "mem_max_mib", "core_pct", "burst")
        changed |= {key: getattr(new, key) for key in sizes}
    for flag, key in (
        ("time", "time_limit_ms"),
        ("grace", "grace_ms"),
        ("begin", "begin_ms"),
        ("cpus", "cpu_milli"),
        ("host_mem", "host_mem_mib"),
        ("gpu", "pins"),
        ("mem_shows_max", "mem_shows_max"),
        *((same, same) for same in ("name", "comment", "priority", "retries", "profile", "rerun", "after")),
    ):
        if flag in values:
            changed[key] = getattr(new, key)
    return replace(request, **changed)


def _size_flags(request: Request) -> dict[str, str]:
    """The flags that its sizes were made from."""
    flags: dict[str, str] = {}
    if request.gpus != 1 or request.milli not in (SHARED_MILLI, request.core_pct * 10):
        flags["gpus"] = str(request.gpus) if request.milli == WHOLE else str(request.milli / WHOLE)
    if request.mem_mib:
        flags["mem"] = f"{request.mem_mib}M"
    if request.mem_max_mib:
        flags["mem_max"] = f"{request.mem_max_mib}M"
    if request.core_pct and not request.burst:
        flags["core_pct"] = str(request.core_pct)
    return flags


def tasks_of(values: Mapping[str, Any]) -> Tasks:
    """The jobs that `--array` and `--param` make of one submission."""
    named = values.get("param") or []
    combined = [tuple(each) for each in product(*(_values(text) for text in named))]
    if len({pair[0] for pair in combined[0]}) < len(named):
        raise LiveError("--param names one parameter twice; give all of its values in one: lr=1e-3,1e-4")
    if "array" not in values:
        if not named:
            return Tasks(None, ((),))
        _check_count(len(combined))
        return Tasks(tuple(range(1, len(combined) + 1)), tuple(combined))
    numbers, most = _array(str(values["array"]))
    if not named:
        return Tasks(numbers, ((),) * len(numbers), most)
    _check_count(len(numbers) * len(combined))
    pairs = [
        (*chosen, ("array", str(number))) if len(numbers) > 1 else chosen
        for number in numbers
        for chosen in combined
    ]
    return Tasks(tuple(range(1, len(pairs) + 1)), tuple(pairs), most)


def _values(text: str) -> list[tuple[str, str]]:
    name, equals, listed = text.partition("=")
    if not equals or not _WORD.fullmatch(name) or not all(listed.split(",")):
        raise LiveError(f"--param '{text}'; write NAME=VALUE,VALUE, such as lr=1e-3,1e-4")
    return [(name, value) for value in listed.split(",")]


def _array(text: str) -> tuple[tuple[int, ...], int]:
    listed, percent, most = text.partition("%")
    if percent and not (most.isdigit() and int(most) > 0):
        raise LiveError(f"--array {text}: behind % is the number of tasks that run at a time, at least 1")
    numbers: list[int] = []
    for part in listed.split(","):
        found = _ARRAY.fullmatch(part)
        if not found:
            raise LiveError(f"--array '{text}'; write 1-10, 0-8:2 or 1,5,7, and %N behind it")
        first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
        if last < first or step < 1:
            raise LiveError(
                f"--array '{text}': {part} selects no numbers; write the smaller one first, and a step of at least 1"
            )
        _check_count((last - first) // step + 1 + len(numbers))
        numbers += range(first, last + 1, step)
    if len(set(numbers)) < len(numbers):
        raise LiveError(f"--array '{text}' names a number twice")
    return tuple(numbers), int(most or 0)


def _check_count(count: int) -> None:
    if count > MOST_TASKS:
        raise LiveError(f"{count:,} jobs in one submission; at most {MOST_TASKS:,}")


def _gpus(values: Mapping[str, Any]) -> tuple[int, int, bool]:
    """GPUs, the part of each, and whether it is a part."""
    text = str(values.get("gpus", "1"))
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if number < 0 or number > 1024 or number != number or (number > 1 and number != int(number)):
        raise LiveError(f"--gpus '{text}'; expected a whole number, or a part of one GPU such as 0.5")
    if number in (0.0, 1.0) or number > 1:
        return int(number), WHOLE, False
    milli = round(number * WHOLE)
    if milli < 1:
        raise LiveError(f"--gpus {text}: a part of a GPU is at least 0.001")
    return 1, milli, True


def _image(values: Mapping[str, Any]) -> str:
    if "image" not in values:
        return ""
    image = str(values["image"])
    if not image or image.startswith("-") or re.search(r"\s", image):
        raise LiveError(
            f"--image '{image}'; expected a name such as docker.io/library/python:3.12, or a .sif file"
        )
    return image


def _gang(values: Mapping[str, Any]) -> tuple[str, int]:
    if "gang" not in values:
        return "", 0
    text = str(values["gang"])
    name, slash, number = text.rpartition("/")
    if not slash or not name or "/" in name or "\n" in name or len(name) > LONGEST_NAME:
        raise LiveError(
            f"--gang '{text}'; write NAME/N, such as train/4: a name without '/', and how many start together"
        )
    if not (number.isascii() and number.isdigit()) or not 1 <= int(number) <= MOST_TASKS:
        raise LiveError(
            f"--gang '{text}': {number or 'nothing'} tasks start together; expected 1 to {MOST_TASKS:,}"
        )
    return name, int(number)


def _notify(values: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    listed = values.get("notify", ())
    addresses = (listed,) if isinstance(listed, str) else tuple(listed)
    for address in addresses:
        if not _ADDRESS.fullmatch(address):
            raise LiveError(
                f"--notify '{address}'; write https://…, slack:https://…, NAME@HOST, desktop or command:…"
            )
    listed_events = values.get("notify_on", "end")
    events = listed_events.split(",") if isinstance(listed_events, str) else listed_events
    for event in events:
        if event not in NOTIFY_ON:
            raise LiveError(f"--notify-on '{event}'; there are {', '.join(NOTIFY_ON)}")
    return addresses, tuple(dict.fromkeys(events)) if addresses else ()


def _pins(values: Mapping[str, Any]) -> tuple[int, ...]:
    if "gpu" not in values:
        return ()
    parts = str(values["gpu"]).split(",")
    if not all(part.isdigit() for part in parts) or len(set(parts)) < len(parts):
        raise LiveError(f"--gpu '{values['gpu']}'; write indices of GPUs, each once, such as 0,1")
    return tuple(sorted(map(int, parts)))


def _after(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    found = []
    for part in str(values.get("after", "")).split(","):
        if not part:
            continue
        match = _AFTER.fullmatch(part)
        if not match:
            raise LiveError(f"--after '{part}'; write ok:ID, fail:ID or any:ID, such as ok:12")
        found.append((match[1] or "any", match[2]))
    return tuple(found)


def _size(values: Mapping[str, Any], key: str) -> int:
    if key not in values:
        return 0
    try:
        return mem_mib(str(values[key]))
    except Exception as error:
        flag = "--" + key.replace("_", "-")
        raise LiveError(
            f"{flag} '{values[key]}'; write a size with M, G or T, such as 512M or 8G; see: berth submit --help"
        ) from error


def _mem(values: Mapping[str, Any]) -> tuple[int, int]:
    """The GPU memory that a job begins with, and how far that may grow; 0: it is not said."""
    least, dots, most = str(values.get("mem", "")).partition("..")
    if not dots:
        mem, mem_max = _size(values, "mem"), _size(values, "mem_max")
    elif "mem_max" in values:
        raise LiveError(f"--mem {values['mem']} says how far it may grow; leave --mem-max out")
    elif not (least and most):
        raise LiveError(f"--mem '{values['mem']}'; write both sizes, such as 8G..20G, or one size alone")
    else:
        mem, mem_max = _size({"mem": least}, "mem"), _size({"mem": most}, "mem")
    if mem_max and mem_max < mem:
        most = most or str(values["mem_max"])
        raise LiveError(f"--mem {least} is more than it may grow to, {most}; write the smaller size first")
    return mem, mem_max


def _number(values: Mapping[str, Any], key: str, least: int, most: int, otherwise: int = 0) -> int:
    text = str(values.get(key, otherwise))
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        flag = "--" + key.replace("_", "-")
        raise LiveError(f"{flag} '{text}'; expected a whole number from {least:,} to {most:,}")
    return number


def _float(values: Mapping[str, Any], key: str, otherwise: float) -> float:
    text = str(values.get(key, otherwise))
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1e6:
        raise LiveError(f"--{key} '{text}'; expected a number from 0")
    return number


def _grace_ms(text: str) -> int:
    """Milliseconds of `10`, which are seconds, or of `10s`, `1m`."""
    if _PLAIN.fullmatch(text):
        return duration_ms(text, "--grace")
    return round(_float({"grace": text}, "grace", 10.0) * 1000)


def duration_ms(text: str, flag: str = "--time") -> int:
    """Milliseconds of `2:00:00`, `1-12:00:00`, `30` (minutes), `90s`, `1.5h`."""
    if found := _PLAIN.fullmatch(text):
        return max(1, round(float(found[1]) * _UNITS_S[found[2]] * 1000))
    seconds = slurm_s(text) if _CLOCK.fullmatch(text) else None
    if seconds:
        return seconds * 1000
    raise LiveError(f"{flag} '{text}'; write 2:00:00, 1-12:00:00, 30 (minutes), 90s or 2h, more than 0")


def moment_ms(text: str, now_ms: int) -> int:
    """The moment of `now+2h`, `18:00` (the next) or `2026-11-22T18:00` in local time."""
    if text == "now":
        return now_ms
    if text.startswith("now+"):
        return now_ms + duration_ms(text[4:], "--begin")
    now = datetime.fromtimestamp(now_ms / 1000)
    try:
        if "-" in text:
            return round(datetime.fromisoformat(text).timestamp() * 1000)
        at = datetime.combine(now.date(), datetime.strptime(text, "%H:%M").time())
    except ValueError as error:
        raise LiveError(f"--begin '{text}'; write 2026-11-22T18:00, 18:00, now or now+2h") from error
    return round((at if at > now else at + timedelta(days=1)).timestamp() * 1000)


def substituted(words: Iterable[str], params: Iterable[tuple[str, str]]) -> list[str]:
    """The words with the value of a parameter for each {NAME}."""
    found = list(words)
    for name, value in params:
        found = [word.replace("{" + name + "}", value) for word in found]
    return found
