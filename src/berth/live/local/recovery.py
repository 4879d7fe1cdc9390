"""What a store that was broken no longer knows, found again in the folders of the runs.

Every start leaves its job in the run's folder (`Run.prepare`), so that a job that started after the last good copy was
made is taken up again instead of being lost. Numbers of jobs are reserved in a file beside the store, so that none is
used twice whatever happens to the store.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from berth.files import write_whole
from berth.live.local.entry import STARTING, Entry
from berth.live.local.places import Places
from berth.live.local.request import request_from_dict, to_dict
from berth.live.local.store import Statement, of_entry, of_request, of_text

BLOCK = 1000


def job_text(entry: Entry, texts: Iterable[str]) -> str:
    """All that is needed to go on with a job without the store: `texts` are its environment and script."""
    saved = {"entry": entry.to_dict(), "request": to_dict(entry.request), "texts": list(texts)}
    return json.dumps(saved, separators=(",", ":"))


def started_since(
    runs: str, live: Mapping[str, Entry], next_key: Callable[[], int], boot: str
) -> tuple[list[Entry], list[Statement]]:
    """The jobs of starts that the store does not know, and the rows that tell it of them.

    Those among `live` are changed in place; what becomes of each start is to be found out (`Runner.adopt`).
    """
    latest: dict[str, int] = {}
    for name in os.listdir(runs):
        job_id, _, count = name.rpartition("-")
        if count.isdigit():
            latest[job_id] = max(latest.get(job_id, 0), int(count))
    found: list[Entry] = []
    rows: list[Statement] = []
    for job_id, start in latest.items():
        known = live.get(job_id)
        if known is not None and start <= known.start:
            continue
        key = next_key()
        made = _made(os.path.join(runs, f"{job_id}-{start}", "job"), key)
        if made is not None:
            entry, texts = made
            rows += [of_request(key, entry.request), *map(of_text, texts), of_entry(entry)]
            found.append(entry)
        elif known is not None:
            known.start, known.state, known.boot = start, STARTING, boot
            known.over, known.over_as = None, ""
    return found, rows


def _made(path: str, key: int) -> tuple[Entry, list[str]] | None:
    """The job of a run's folder, as it was started, and its texts; None where the file is not there or is not whole."""
    try:
        with open(path, encoding="utf-8") as file:
            saved: dict[str, Any] = json.load(file)
        request = request_from_dict(saved["request"])
        entry = Entry.from_dict({**saved["entry"], "request_key": key, "state": STARTING}, request)
        of_entry(entry)
        return entry, [str(text) for text in saved["texts"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


class Numbers:
    """The file that says which numbers of jobs may have been given out."""

    def __init__(self, places: Places) -> None:
        self._path = places.numbers
        self._outputs = places.output
        self._reserved = self._read()

    def first_free(self) -> int:
        """A number above all that were ever given out, as far as the files tell."""
        of_outputs = (name.partition(".")[0].partition("_")[0] for name in os.listdir(self._outputs))
        return max(self._reserved, 1 + max((int(each) for each in of_outputs if each.isdigit()), default=0))

    def reserve(self, number: int) -> None:
        """Note durably that numbers up to this one are given out, ahead of it so that it is seldom done; OSError where
        the file cannot be written."""
        if number < self._reserved:
            return
        reserved = number + BLOCK
        write_whole(Path(self._path), f"{reserved}\n", durable=True)
        self._reserved = reserved

    def _read(self) -> int:
        try:
            with open(self._path, encoding="ascii") as file:
                return int(file.read())
        except (OSError, ValueError):
            return 1
