"""A short-lived child of the agent: takes pods that have ended into the node's history, and profiles from life.

`recording.py STATE_FOLDER ARCHIVE` reads `seen/*.json` and `samples/`, and removes what it has recorded. It may be
killed at any time and run again: the history knows a pod by its name and when it was made.
"""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import msgspec

from berth.files import whole_file, write_whole
from berth.history.importing.simulated import import_records
from berth.history.store.folder import open_history
from berth.history.store.import_result import Options
from berth.history.store.record_files import write_records
from berth.live.card_models import card_model
from berth.live.driver.records import Sampled
from berth.live.driver.records import record_of as record_of_end
from berth.live.driver.site import End, Gpu
from berth.live.kubernetes.node.agent import SAMPLES, SEEN, Seen, ran_out_of_memory
from berth.live.local.profile_recorder import ProfileRecorder
from berth.live.local.samples import Sample, read_samples
from berth.model import Job, Record, RecordState, Share
from berth.profiles import IN_HISTORY
from berth.profiles.file import ENDING

STATES = {"Succeeded": RecordState.COMPLETED, "Failed": RecordState.FAILED}
MOST = 5000
"""Pods that one child takes over."""
MOST_SAMPLES = 4000
"""Of a pod on one GPU that count."""
MOST_BYTES = 300_000
"""Of a file of samples; a longer one, of some 10,000 lines, is thinned out."""


def main() -> None:
    state, archive = Path(sys.argv[1]), Path(sys.argv[2])
    history = state / "history"
    paths = sorted((state / SEEN).glob("*.json"))[:MOST]
    profiles, records, done = ProfileRecorder(history), [], list[Path]()
    learned = list[Path | None]()
    for path in paths:
        seen = msgspec.json.decode(path.read_bytes(), type=Seen)
        ended = seen.since_ms is None
        files = sorted((state / SAMPLES).glob(f"*/{path.stem}"))
        of_gpus = [samples_of(file, seen.since_ms or 0) for file in files]
        record = record_of(seen, [*chain.from_iterable(of_gpus)])
        for samples in of_gpus if record.state is RecordState.COMPLETED or not ended else ():
            alone = [sample for sample in samples if sample.alone]
            path_of_profile = profiles.learn(
                record.application,
                "",  # images and arguments change from run to run: the profile is the application's
                card_model(seen.model, seen.card_mib),
                alone if alone and not ended else samples,
                seen.usage.peak_mib or None,
                whole=ended,
                begun=seen.begun,
            )
            learned.append(path_of_profile)
        if ended:
            records.append(record)
            done += files
        done.append(path)
    if records:
        draft = state / "records.parquet"
        write_records(records, draft)
        import_records(
            open_history(history, importing="this node's pods"), draft, Options(cluster="kubernetes")
        )
        draft.unlink()
    if records or any(learned):  # else collectors would take over the same again
        export(history, archive)
    for path in done:
        path.unlink()
    for path in (state / SAMPLES).glob("*/*"):
        if path.stat().st_size > MOST_BYTES:
            thin_out(path)


def export(history: Path, file: Path) -> None:
    """Write what `berth k8s history` collects: an archive of the records and the profiles of this node."""
    records = file.with_suffix(".parquet")
    write_records(open_history(history).records(), records)
    with whole_file(file) as temporary, tarfile.open(temporary, "w:gz") as tar:
        tar.add(records, "records.parquet")
        for path in sorted((history / IN_HISTORY).glob(f"*{ENDING}")):
            tar.add(path, f"profiles/{path.name}")
    records.unlink()


def record_of(seen: Seen, samples: Sequence[Sample]) -> Record:
    """The record of a pod, with what samples say of all its GPUs."""
    pod, parts, usage = seen.pod, seen.parts, seen.usage
    end_ms = pod.end_ms or seen.now_ms
    share = Share(
        max((part.milli for part in parts), default=0), max((part.mem_mib for part in parts), default=0)
    )
    job = Job(
        str(pod),
        pod.created_ms or end_ms,
        None,
        user=pod.namespace,
        application=pod.application,
        gpus=len(parts),
        share=share,
        cpu_milli=pod.cpu_milli,
        mem_mib=pod.mem_mib,
    )
    state = STATES.get(pod.phase, RecordState.CANCELLED)
    if ran_out_of_memory(pod, usage):
        state = RecordState.OUT_OF_MEMORY
    return record_of_end(
        job,
        End(job.id, state, end_ms, peak_mib=usage.peak_mib or None, exit_code=pod.exit_code),
        attempt=1,
        queued_ms=None,
        start_ms=pod.start_ms,
        gpus=[Gpu(pod.node, index) for index in sorted({part.index for part in parts})],
        share=share,
        gpu_model=card_model(seen.model, seen.card_mib).name,
        card_mib=seen.card_mib,
        sampled=Sampled(
            [sample.use_pct / 100 for sample in samples if sample.use_pct is not None],
            [sample.mem_mib / seen.card_mib for sample in samples],
        ),
        name=pod.name,
        command=pod.program,
    )


def samples_of(file: Path, since_ms: int) -> list[Sample]:
    """What a pod did on one GPU since then, thinned out. After months, earlier ones would leave few of a window."""
    return thinned([each for each in read_samples(str(file.parent), file.name) if each.time_ms >= since_ms])


def thinned(samples: Sequence[Sample]) -> list[Sample]:
    """Samples at an even distance, at most `MOST_SAMPLES`: those of long ago may have been thinned out already."""
    lasted_ms = samples[-1].time_ms - samples[0].time_ms if samples else 0
    kept, next_ms = list[Sample](), 0
    for sample in samples:
        if sample.time_ms >= next_ms:
            kept.append(sample)
            next_ms = sample.time_ms + lasted_ms // MOST_SAMPLES
    return kept


def thin_out(file: Path) -> None:
    """Leave every second line of a file of samples."""
    lines = file.read_text(encoding="ascii").splitlines(keepends=True)
    write_whole(file, "".join(lines[::2]))


if __name__ == "__main__":
    main()
