"""How long something lasted, for people and as Slurm prints it."""

from __future__ import annotations


def duration(seconds: float) -> tuple[str, str]:
    """Seconds for people as a number and its unit: `90` and `s`, `2.5` and `h`."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f}", unit
    return f"{seconds:,.0f}", "s"


def duration_text(seconds: float) -> str:
    """Seconds for people: `90 s`, `2.5 h`."""
    return " ".join(duration(seconds))


def hours_text(hours: float) -> str:
    """Hours with two digits behind the point, and more of them where those would all be 0."""
    return f"{hours:.2g}" if 0 < hours < 0.005 else f"{hours:,.2f}"


def slurm_s(text: str) -> int | None:
    """Seconds of a time as Slurm prints it: `1-02:03:04`, `7-0`, `03:04` (minutes:seconds), `30` (minutes), `300 sec`.
    None where it is none, such as UNLIMITED."""
    words = text.split()
    days, dash, clock = words[0].rpartition("-") if words else ("", "", "")
    parts = clock.split(":")
    if not all(part.isdecimal() for part in parts) or len(parts) > 3 or (dash and not days.isdecimal()):
        return None
    numbers = [int(part) for part in parts]
    if len(words) > 1 and words[1].startswith("sec"):
        return numbers[0]
    if dash:
        numbers += [0] * (3 - len(numbers))
    else:
        numbers = [*numbers, 0] if len(numbers) == 1 else numbers
        numbers = [0] * (3 - len(numbers)) + numbers
    hours, minutes, seconds = numbers
    return int(days or 0) * 86_400 + hours * 3600 + minutes * 60 + seconds
