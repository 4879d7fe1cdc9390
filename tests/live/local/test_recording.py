"""What has ended comes into the history as Records, and profiles are recorded from life."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from berth.errors import StoreError
from berth.gpu_models import GPU_MODELS
from berth.knowledge import History
from berth.live.local import recording
from berth.live.local.places import Places
from berth.live.local.profile_recorder import ProfileRecorder
from berth.live.local.request import Request
from berth.live.local.samples import Sample
from berth.live.local.store import Reader, Store, of_attempt, of_request
from berth.model import Job, Profile, RecordState, Share
from berth.profiles import BEGUN, RUNNING, SHARED, Profiles, keep_profile, peak_mem_mib
from berth.sampling.sampler import job_of_process
from tests.live.local.test_enforcement import gpu_job
from tests.live.local.world import BERTH, World

A100 = GPU_MODELS["A100-80"]


def samples(uses: Sequence[float], mib: int, *, alone: bool = True) -> list[Sample]:
    return [Sample(1000 * at, use, mib, alone) for at, use in enumerate(uses)]


def test_attempts_become_records_once_and_the_same_command_answers_from_the_history() -> None:
    world = World(options=["--record-s", "0.2"])
    try:
        world.up()
        good = world.submit(gpu_job(2000), mem="4G", name="train", comment="first")
        grown = world.submit(gpu_job(2000), mem="1G..1G")
        bad = world.submit("exit 7", gpus=0)
        never = world.submit("true", begin="now+1h", gpus=0)
        world.wait(good, grown, bad)
        world.ask("cancel", ids=[never])
        from berth.history.store.folder import open_history

        def records() -> list[tuple[str, int, str, int | None]]:
            if not (Path(world.places.history) / "index.json").exists():
                return []
            found = open_history(world.places.history).records()
            return sorted((each.job_id, each.attempt, each.state.value, each.exit_code) for each in found)

        world.until(lambda: len(records()) >= 5, "all are in the history", 120)
        assert records() == [
            (good, 1, "completed", 0), (grown, 1, "out-of-memory", 1), (grown, 2, "completed", 0),
            (bad, 1, "failed", 7), (never, 1, "cancelled", None),
        ]  # fmt: skip
        (record,) = (each for each in open_history(world.places.history).records() if each.job_id == good)
        assert (record.name, record.comment, record.state) == ("train", "first", RecordState.COMPLETED)
        assert (record.application, record.share, record.gpu_model) == ("train", Share(100, 4096), "A100-80")
        assert record.gpu_mem_peak is not None
        assert 2000 / 81_920 <= record.gpu_mem_peak < 2200 / 81_920
        live = subprocess.run(
            [BERTH, "job", good, "--json"], env=world.environment, capture_output=True, text=True
        )
        assert json.loads(live.stdout)[0]["state"] == "completed"
        world.ask("down")
        assert world.broker is not None
        world.broker.wait()
        later = subprocess.run(
            [BERTH, "job", good, "--json"],
            env=world.environment,
            capture_output=True,
            text=True,
            cwd=world.folder,
        )
        assert json.loads(later.stdout)[0]["attempts"][0]["state"] == "completed", later.stderr
    finally:
        world.close()


def test_an_application_is_recorded_when_it_first_runs_alone(tmp_path: Path) -> None:
    life = ProfileRecorder(tmp_path)
    path = life.learn("train", "train.py", A100, samples([50] * 10, 4000), 5000)
    assert path is not None
    profile = Profiles.of_history(tmp_path)["train"]
    assert (len(profile.usage), profile.interval_ms, profile.hardware) == (10, 1000, A100)
    assert peak_mem_mib(profile) == 5000
    assert profile.usage[:, 0] == pytest.approx(np.full(10, 0.5))


def test_a_first_run_that_is_shared_is_recorded_as_such_and_gives_way_to_one_alone(tmp_path: Path) -> None:
    life = ProfileRecorder(tmp_path)
    life.learn("train", "train.py", A100, samples([30] * 20, 4000, alone=False), 4000)
    found = Profiles.of_history(tmp_path)
    assert (found["train"].kind, peak_mem_mib(found["train"])) == (SHARED, 4000)
    assert not found.of_runs_alone()  # no policy takes it for what the application does alone
    life.learn("train", "train.py", A100, samples([60] * 10, 4000), 3900)
    profile = Profiles.of_history(tmp_path)["train"]
    assert (profile.kind, len(profile.usage), peak_mem_mib(profile)) == ("live", 10, 4000)
    assert profile.usage[:, 0] == pytest.approx(np.full(10, 0.6))


def test_the_longest_beginning_of_a_run_alone_counts_until_more_of_one_alone_is_seen(tmp_path: Path) -> None:
    life = ProfileRecorder(tmp_path)

    def kind(rows: int, *, alone: bool = True, **how: bool) -> tuple[bool, str, int]:
        path = life.learn("train", "train.py", A100, samples([30] * rows, 4000, alone=alone), 4000, **how)
        found = Profiles.of_history(tmp_path)["train"]
        return path is not None, found.kind, len(found.usage)

    assert kind(30, whole=False, begun=True) == (True, BEGUN, 30)
    assert kind(20, whole=False, begun=True) == (False, BEGUN, 30)
    assert kind(60, whole=False, begun=True) == (True, BEGUN, 60)
    assert kind(90, alone=False) == (False, BEGUN, 60)
    assert kind(90, whole=False) == (True, RUNNING, 90)
    assert kind(120, whole=False, begun=True) == (False, RUNNING, 90)
    assert kind(50) == (True, "live", 50)


def test_a_profile_that_somebody_recorded_stays_where_a_run_is_shared(tmp_path: Path) -> None:
    own = Profile("train", "own", 0, "", A100, 1000, np.full((4, 4), 0.5), "sm-activity")
    keep_profile(own, tmp_path / "profiles")
    life = ProfileRecorder(tmp_path)
    assert life.learn("train", "train.py", A100, samples([30] * 9, 4000, alone=False), 4000) is None
    assert Profiles.of_history(tmp_path)["train"].kind == "own"


def test_one_odd_run_changes_little_and_a_lasting_change_is_followed(tmp_path: Path) -> None:
    life = ProfileRecorder(tmp_path)
    life.learn("train", "train.py", A100, samples([40] * 10, 4000), 4000)
    life.learn("train", "train.py", A100, samples([90] * 10, 4000), 4000)
    assert Profiles.of_history(tmp_path)["train"].usage[:, 0].mean() == pytest.approx(0.5)
    for _ in range(20):
        life.learn("train", "train.py", A100, samples([90] * 10, 4000), 4000)
    assert Profiles.of_history(tmp_path)["train"].usage[:, 0].mean() == pytest.approx(0.9, abs=0.01)


def test_a_slowed_shared_run_is_aligned_and_only_its_memory_counts(tmp_path: Path) -> None:
    life = ProfileRecorder(tmp_path)
    shape = [10, 10, 10, 10, 10, 80, 80, 80, 80, 80]
    life.learn("train", "train.py", A100, samples(shape, 4000), 4000)
    before = Profiles.of_history(tmp_path)["train"].usage
    life.learn(
        "train", "train.py", A100, samples([use / 2 for use in shape for _ in "12"], 6000, alone=False), 6000
    )
    after = Profiles.of_history(tmp_path)["train"].usage
    assert after[:, 0] == pytest.approx(before[:, 0])
    assert round(after[:, 1].max() * A100.mem_mib) == 6000


def test_another_program_under_a_known_name_changes_nothing_and_is_said(tmp_path: Path) -> None:
    life = ProfileRecorder(tmp_path)
    life.learn("train", "train.py", A100, samples([40] * 10, 4000), 4000)
    assert life.learn("train", "other.py", A100, samples([90] * 10, 9000), 9000) is None
    assert "was recorded of 'train.py', and a job of that name ran 'other.py'" in life.notes[0]
    assert peak_mem_mib(Profiles.of_history(tmp_path)["train"]) == 4000


def test_a_run_that_nobody_measured_makes_no_profile(tmp_path: Path) -> None:
    untold = [replace(sample, use_pct=None) for sample in samples([0] * 9, 100)]
    assert ProfileRecorder(tmp_path).learn("train", "train.py", A100, untold, 100) is None


def test_measured_peaks_are_believed_of_the_next_job(tmp_path: Path) -> None:
    knowledge = History()
    job = Job("1", 0, None, application="train", share=Share(100, 1000))
    for peak in (3000, 3100, 3050):
        knowledge.measured(job, peak)
    told = knowledge.peak_mem_mib(job)
    assert told is not None
    assert (told.expected, told.basis) == (3050, "history")


def test_sampling_knows_the_jobs_of_the_queue(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; print('on', flush=True); time.sleep(60)"],
        env={"BERTH_JOB_ID": "12_3"}, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert child.stdout is not None
    child.stdout.readline()
    try:
        assert job_of_process(child.pid) == "12_3"
    finally:
        child.kill()
        child.communicate()


def test_one_attempt_that_cannot_be_recorded_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from berth.history.store.folder import open_history

    places = Places(str(tmp_path))
    places.make()
    store = Store(places.store)
    store.write([of_request(1, Request(("python3", "bad-\udce9.py"), name="odd-\udce9"))])
    ended = {
        "attempt": 1, "queued_ms": 1, "state": "completed", "start_ms": 2, "end_ms": 3, "exit_code": 0, "reason": "",
        "slots": (), "share": (0, 0), "peak_mib": None, "cpu_ms": 1, "mem_peak_mib": 1, "request_key": 1,
        "submit_ms": 1, "user": "ann", "index": None, "params": (), "run": "x-1",
    }  # fmt: skip
    changes: list[dict[str, object]] = [
        {"job": "1"}, {"job": "2", "request_key": 9}, {"job": "3", "slots": (5,)}, {"job": "4", "end_ms": 1 << 80},
        {"job": "5", "share": (250, 100)},
    ]  # fmt: skip
    store.write([of_attempt(ended | change) for change in changes])
    monkeypatch.setattr(sys, "argv", ["recording", places.folder, "[]"])
    recording.main()
    told = json.loads(capsys.readouterr().out)
    assert [job for job, _ in told["recorded"]] == ["1", "2", "3", "4", "5"]
    assert [text.partition(" is not")[0] for text in told["said"]] == [
        "attempt 1 of job 2", "attempt 1 of job 4",
    ]  # fmt: skip
    found = sorted((each.job_id, each.name, each.share) for each in open_history(places.history).records())
    assert found == [
        ("1", "odd-?", Share(1000, 0)), ("3", "odd-?", Share(1000, 0)),
        ("5", "odd-?", Share(250, 100)),  # what it was given, which may be less than it asked for
    ]  # fmt: skip
    store.close()


def test_a_store_that_is_read_while_it_is_broken_stays_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    store = Store(str(path))
    store.keep_copy()
    store.close()
    path.write_bytes(b"not a database, and long enough to be read as one" * 100)
    reader = Reader(str(path))
    with pytest.raises(StoreError, match="cannot be read"):
        reader.unrecorded(10)
    reader.close()
    assert not list(tmp_path.glob("queue.db.broken-*"))


def test_a_damaged_store_is_not_copied_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(tmp_path / "queue.db"))

    class Damaged:
        def execute(self, sql: str) -> Damaged:
            return self

        def fetchone(self) -> tuple[str]:
            return ("row 7 missing from index jobs_live",)

        def close(self) -> None: ...

    monkeypatch.setattr(sqlite3, "connect", lambda *args, **named: Damaged())
    with pytest.raises(StoreError, match="is damaged \\(row 7 missing"):
        store.keep_copy()
    store.close()
