"""A short-lived child of the broker: takes attempts that have ended into the history, and profiles from life.

It may be killed at any time and run again: the history knows an attempt by its job and when it was queued. It prints
what it has recorded as JSON, and the broker notes that.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from berth.errors import in_one_line
from berth.experiments.recorded_run import keep_machine
from berth.history.importing.simulated import import_records
from berth.history.store.folder import open_history
from berth.history.store.import_result import Options
from berth.history.store.record_files import write_records
from berth.live.card_models import card_model
from berth.live.driver.records import Sampled, record_of
from berth.live.driver.site import End, Gpu
from berth.live.local.entry import UNKNOWN, application_of
from berth.live.local.places import Places
from berth.live.local.profile_recorder import ProfileRecorder
from berth.live.local.request import Request
from berth.live.local.samples import Sample, read_samples
from berth.live.local.store import Reader
from berth.model import NO_GPU, Job, Node, Record, RecordState, Share

MOST = 5000
"""Attempts that one child takes over."""


def main() -> None:
    """`recording.py STATE_FOLDER CARDS`, with the cards as JSON: a list of model and MiB."""
    places = Places(sys.argv[1])
    cards = [(str(model), int(mib)) for model, mib in json.loads(sys.argv[2])]
    store = Reader(places.store)
    found = store.unrecorded(MOST)
    nodes, policies = store.meta("nodes", []), store.meta("policies", [])
    host = socket.gethostname().partition(".")[0] or "here"
    history = Path(places.history)
    profiles = ProfileRecorder(history)
    records: list[Record] = []
    changed: list[str] = []
    notes: list[str] = []
    for attempt in found:
        try:
            request = store.request(attempt["request_key"])
            samples = read_samples(places.samples, attempt["run"])
            records.append(record_of_attempt(attempt, request, cards, host, samples))
            if (
                attempt["state"] == "completed"
                and len(attempt["slots"]) == 1
                and attempt["slots"][0] < len(cards)
            ):
                model, mib = cards[attempt["slots"][0]]
                learned = profiles.learn(
                    _plain(application_of(request, _pairs(attempt["params"]))),
                    _program(request),
                    card_model(model, mib),
                    samples,
                    attempt["peak_mib"],
                )
                if learned is not None:
                    changed.append(str(learned))
        except Exception as error:  # noqa: BLE001  the attempts behind it are to be recorded
            notes.append(_not_taken(attempt["job"], attempt["attempt"], error))
    store.close()
    keep_machine(history, [_node(each) for each in nodes], [(since, name) for since, name in policies])
    if records:
        draft = Path(places.folder) / "records.parquet"
        notes += _write(records, draft)
        import_records(open_history(history, importing="the local queue"), draft, Options(cluster=host))
        draft.unlink()
    for attempt in found:
        if os.path.exists(path := os.path.join(places.samples, attempt["run"])):
            os.unlink(path)
    print(
        json.dumps(
            {
                "recorded": [[attempt["job"], attempt["attempt"]] for attempt in found],
                "profiles": changed,
                "said": [*profiles.notes, *notes],
            }
        )
    )


def _write(records: Sequence[Record], draft: Path) -> list[str]:
    """Write all records that can be; what is said of the others."""
    try:
        write_records(records, draft)
        return []
    except OSError:
        raise  # a full disk: all are written later
    except Exception:  # noqa: BLE001  one of them has a value that no file can hold
        good, notes = [], []
    for record in records:
        try:
            write_records([record], draft)
            good.append(record)
        except Exception as error:  # noqa: BLE001
            notes.append(_not_taken(record.job_id, record.attempt, error))
    write_records(good, draft)
    return notes


def _not_taken(job: str, attempt: int, error: Exception) -> str:
    return (
        f"attempt {attempt} of job {job} is not in the history, and will not be: {_plain(in_one_line(error))}"
    )


def _plain(text: str) -> str:
    """A text that UTF-8 can hold: `?` stands for each byte of a command that is not UTF-8."""
    return text.encode("utf-8", "replace").decode()


def record_of_attempt(
    attempt: dict[str, Any],
    request: Request,
    cards: Sequence[tuple[str, int]],
    host: str,
    samples: Sequence[Sample],
) -> Record:
    """The record of an attempt that has ended; what was not measured is None."""
    slots, stored, (given_milli, given_mib) = attempt["slots"], attempt["state"], attempt["share"]
    model, card_mib = cards[slots[0]] if slots and slots[0] < len(cards) else ("", 0)
    job = Job(
        attempt["job"],
        attempt["submit_ms"],
        None,
        user=_plain(attempt["user"]),
        application=_plain(application_of(request, _pairs(attempt["params"]))),
        gpus=request.gpus,
        share=Share(request.milli, request.mem_mib),
        cpu_milli=request.cpu_milli,
        mem_mib=request.host_mem_mib,
        time_limit_ms=request.time_limit_ms,
    )
    end = End(
        attempt["job"],
        RecordState.FAILED if stored == UNKNOWN else RecordState(stored),
        attempt["end_ms"],
        cut_short=stored == UNKNOWN,
        peak_mib=attempt["peak_mib"],
        cpu_used_ms=attempt["cpu_ms"],
        mem_peak_mib=attempt["mem_peak_mib"],
        exit_code=attempt["exit_code"],
    )
    return record_of(
        job,
        end,
        attempt=attempt["attempt"],
        queued_ms=attempt["queued_ms"],
        start_ms=attempt["start_ms"],
        gpus=[Gpu(host, at) for at in slots] or [Gpu(host, NO_GPU)],
        share=Share(given_milli or request.milli, given_mib or (0 if slots else request.mem_mib)),
        gpu_model=card_model(model, card_mib).name if slots else "",
        card_mib=card_mib,
        sampled=Sampled(
            [sample.use_pct / 100 for sample in samples if sample.use_pct is not None],
            [sample.mem_mib / card_mib for sample in samples] if card_mib else [],
        ),
        name=_plain(request.name),
        comment=_plain(request.comment),
        command=_plain(" ".join(request.argv)),
        label=attempt["job"] if attempt["index"] is not None else "",
        suspended_ms=attempt.get("suspended_ms", 0),
    )


def _node(stored: dict[str, Any]) -> Node:
    model = card_model(stored["model"], stored["card_mib"]) if stored["gpus"] else None
    return Node(stored["name"], stored["gpus"], model, stored["cpu_milli"], stored["mem_mib"])


def _pairs(params: Sequence[Sequence[str]]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in params]


def _program(request: Request) -> str:
    """What tells one program from another under the same name: its script, or its command and the file it is given."""
    if request.script:
        return request.script
    words = [word.rpartition("/")[2] for word in request.argv[:2]]
    return _plain(" ".join(word for at, word in enumerate(words) if at == 0 or not word.startswith("-")))


if __name__ == "__main__":
    main()
