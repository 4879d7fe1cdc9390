"""A short-lived child of the agent: takes pods that have ended into the node's history, and profiles from life.

`recording.py STATE_FOLDER NODE` reads `ended/*.json` and `samples/`, and removes what it has recorded. It may be killed
at any time and run again: the history knows a pod by its name and when it was made.
"""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path
from typing import Any

from berth.files import whole_file
from berth.history.importing.simulated import import_records
from berth.history.store.folder import open_history
from berth.history.store.import_result import Options
from berth.history.store.record_files import write_records
from berth.live.card_models import card_model
from berth.live.driver.records import Sampled
from berth.live.driver.records import record_of as record_of_end
from berth.live.driver.site import End, Gpu
from berth.live.local.profile_recorder import ProfileRecorder
from berth.live.local.samples import Sample, read_samples
from berth.model import NO_GPU, Job, Record, RecordState, Share
from berth.profiles import IN_HISTORY
from berth.profiles.profiles import ENDING

MOST = 5000
"""Pods that one child takes over."""


def main() -> None:
    """Record all that has ended."""
    state, node = Path(sys.argv[1]), sys.argv[2]
    history = state / "history"
    paths = sorted((state / "ended").glob("*.json"))[:MOST]
    profiles, records = ProfileRecorder(history), []
    for path in paths:
        told = json.loads(path.read_text(encoding="utf-8"))
        samples = read_samples(str(state / "samples"), told["uid"])
        records.append(record_of(told, samples, node))
        if told["state"] == "completed" and told["gpus"] == 1:
            hardware = card_model(told["hardware"]["model"], told["hardware"]["mem_mib"])
            # Images and arguments change from run to run: the profile is the application's, with their spread.
            profiles.learn(told["application"], "", hardware, samples, told["peak_mib"] or None)
    if records:
        draft = state / "records.parquet"
        write_records(records, draft)
        import_records(
            open_history(history, importing="this node's pods"), draft, Options(cluster="kubernetes")
        )
        draft.unlink()
        export(history, Path(sys.argv[3]))
    for path in paths:
        (state / "samples" / path.stem).unlink(missing_ok=True)
        path.unlink()
    print(json.dumps({"recorded": len(paths), "said": profiles.said}))


def export(history: Path, file: Path) -> None:
    """Write what `berth k8s history` collects: an archive of the records and the profiles of this node."""
    records = file.with_suffix(".parquet")
    write_records(open_history(history).records(), records)
    with whole_file(file) as aside, tarfile.open(aside, "w:gz") as tar:
        tar.add(records, "records.parquet")
        for path in sorted((history / IN_HISTORY).glob(f"*{ENDING}")):
            tar.add(path, f"profiles/{path.name}")
    records.unlink()


def record_of(told: dict[str, Any], samples: list[Sample], node: str) -> Record:
    """The record of a pod; unmeasured values are None."""
    card_mib = told["hardware"]["mem_mib"]
    job = Job(
        told["job"],
        told["submit_ms"],
        None,
        user=told["user"],
        application=told["application"],
        gpus=told["gpus"],
        share=Share(told["milli"], told["mem_mib"]),
        cpu_milli=told.get("cpu_milli", 0),
        mem_mib=told.get("host_mem_mib", 0),
    )
    end = End(
        told["job"],
        RecordState(told["state"]),
        told["end_ms"],
        peak_mib=told["peak_mib"] or None,
        exit_code=told["exit_code"],
    )
    return record_of_end(
        job,
        end,
        attempt=1,
        queued_ms=None,
        start_ms=told["start_ms"],
        gpus=[Gpu(node, index) for index in told.get("cards", ())] or [Gpu(node, NO_GPU)],
        share=job.share,
        gpu_model=card_model(told["hardware"]["model"], card_mib).name,
        card_mib=card_mib,
        sampled=Sampled(
            [sample.use_pct / 100 for sample in samples if sample.use_pct is not None],
            [sample.mem_mib / card_mib for sample in samples],
        ),
        name=told["name"],
        command=told["program"],
    )


if __name__ == "__main__":
    main()
