"""Sampling: what survives a crash, and what becomes of it in the history."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from berth.errors import SamplingError
from berth.history.importing.sacct import import_text
from berth.history.importing.samples import import_samples, import_usage
from berth.history.store.folder import History, open_history
from berth.history.store.import_result import ImportResult, Options
from berth.history.store.usage import UsageRow
from berth.sampling.readings import GpuReading, ProcessReading
from berth.sampling.sampler import Settings, sample
from berth.sampling.spool import Slice, SpoolWriter, segments
from tests.history import exports
from tests.sampling.segments import read_segment
from tests.sampling.test_readings import gpu

ROOT = Path(__file__).parents[2]
GIB = 2**30
BASE_S = 1_767_225_600  # 2026-01-01


# --- the spool -------------------------------------------------------------------------------------


class Looks:
    """Cards whose looks are given, with a clock that each look moves on by a second."""

    def __init__(self, looks: list[list[GpuReading]], start_s: float = BASE_S) -> None:
        self.looks = looks
        self.now = start_s
        self.at = 0

    def read(self) -> list[GpuReading]:
        self.at += 1
        return self.looks[self.at - 1]

    def sampled(
        self, folder: Path, jobs: dict[int, str], prolog: Path | None = None, flush_ms: int = 3000
    ) -> None:
        proc = folder / "proc"
        for pid, job in jobs.items():
            (proc / str(pid)).mkdir(parents=True, exist_ok=True)
            (proc / str(pid) / "cgroup").write_text(f"0::/system.slice/slurmstepd.scope/job_{job}/step_0\n")
        settings = Settings(1000, flush_ms, prolog, folder / "cgroup", proc)

        def wait(seconds: float) -> None:
            self.now += seconds

        with SpoolWriter(folder / "spool", "node1", "c", 1000) as writer:
            sample(
                self,
                writer,
                settings,
                stopped=lambda: self.at == len(self.looks),
                clock=lambda: self.now,
                wait=wait,
            )


def a_history(folder: Path, **values: object) -> History:
    """One job, 1, of two GPUs from BASE_S to ten seconds later, and what changes of it."""
    row = {"Submit": BASE_S - 5, "Eligible": BASE_S - 5, "Start": BASE_S, "End": BASE_S + 10, **values}
    history = open_history(folder / "h")
    import_text(history, exports.write(folder / "f", [exports.line(**row)]), Options("c"))
    return history


def test_a_spool_becomes_the_means_of_its_job_and_again_changes_nothing(tmp_path: Path) -> None:
    history = a_history(tmp_path)
    busy = [gpu(ProcessReading(10, 8 * GIB, 60.0), use=60.0), gpu(index=1, use=0.0, used_gib=0)]
    idle = [gpu(use=0.0, used_gib=0), gpu(index=1, use=0.0, used_gib=0)]
    (tmp_path / "prolog").mkdir()
    (tmp_path / "prolog" / "1").write_text("gpus=0,1")
    Looks([busy] * 5 + [idle] * 5).sampled(tmp_path, {10: "1"}, tmp_path / "prolog")
    assert import_samples(history, tmp_path / "spool") == ImportResult(1, 1, 0, 0, (), 0)
    (record,) = history.records()
    # Half of the time one of two GPUs was used to 60 % and its memory to half.
    assert record.gpu_use_mean == pytest.approx(0.15)
    assert record.gpu_mem_mean == pytest.approx(0.125)
    assert (record.gpu_use_peak, record.gpu_mem_peak) == (0.6, 0.5)
    assert import_samples(history, tmp_path / "spool") == ImportResult(0, 0, 0, 0, (), 0)  # nothing is new
    assert list(history.records()) == [record]
    # A row of accounting that comes again, changed, keeps what was measured.
    a_history(tmp_path, Comment="vasp")
    assert [(r.application, r.gpu_use_mean) for r in history.records()] == [("vasp", record.gpu_use_mean)]


def test_a_gpu_of_the_job_that_never_had_a_process_counts_as_idle(tmp_path: Path) -> None:
    history = a_history(tmp_path)
    Looks([[gpu(ProcessReading(10, 8 * GIB, 60.0), use=60.0)]] * 10).sampled(tmp_path, {10: "1"})
    import_samples(history, tmp_path / "spool")
    assert [r.gpu_use_mean for r in history.records()] == [pytest.approx(0.3)]


def test_two_nodes_of_a_job_are_put_together(tmp_path: Path) -> None:
    history = a_history(tmp_path, NNodes=2, NodeList="gpu[01-02]")
    for name, use in (("a", 80.0), ("b", 20.0)):
        (tmp_path / name).mkdir()
        Looks([[gpu(ProcessReading(10, GIB, use), use=use)]] * 10).sampled(tmp_path / name, {10: "1"})
        import_samples(history, tmp_path / name / "spool")
    assert [r.gpu_use_mean for r in history.records()] == [pytest.approx(0.5)]


@pytest.mark.slow
def test_each_try_of_a_requeued_job_has_its_own_use(tmp_path: Path) -> None:
    rows = [
        exports.line(State="NODE_FAIL", Submit=BASE_S, Eligible=BASE_S, Start=BASE_S, End=BASE_S + 100),
        exports.line(Submit=BASE_S + 100, Eligible=BASE_S + 100, Start=BASE_S + 200, End=BASE_S + 300),
    ]
    history = open_history(tmp_path / "h")
    import_text(history, exports.write(tmp_path / "f", rows), Options("c"))
    for start, use in ((BASE_S, 40.0), (BASE_S + 200, 80.0)):
        look = [
            gpu(ProcessReading(10, GIB, use), use=use),
            gpu(ProcessReading(10, GIB, use), index=1, use=use),
        ]
        Looks([look] * 100, start).sampled(tmp_path, {10: "1"})
    assert import_samples(history, tmp_path / "spool").imported == 2
    assert [r.gpu_use_mean for r in history.records()] == [pytest.approx(0.4), pytest.approx(0.8)]


def test_a_job_that_nobody_measured_has_no_use(tmp_path: Path) -> None:
    history = a_history(tmp_path)
    Looks([[gpu(ProcessReading(10, GIB, 60.0))]] * 3).sampled(tmp_path, {10: "2"})
    import_samples(history, tmp_path / "spool")
    assert [(r.gpu_use_mean, r.gpu_mem_mean) for r in history.records()] == [(None, None)]


def test_what_a_crash_cut_off_is_passed_over_and_all_before_it_is_there(tmp_path: Path) -> None:
    Looks([[gpu(ProcessReading(10, GIB, 60.0))]] * 9).sampled(tmp_path, {10: "1"})
    (path,) = segments(tmp_path / "spool")
    head, whole, broken = read_segment(path)
    assert (head.node, head.cluster, broken) == ("node1", "c", 0)
    assert sum(each.samples for each in whole) == 9
    data = path.read_bytes()
    for cut in (len(data) - 1, len(data) - 7, len(data) - 150):
        path.write_bytes(data[:cut])
        _, slices, broken = read_segment(path)
        assert slices == whole[: len(slices)]
        assert len(slices) >= len(whole) - 2
        assert broken in (0, 1)
    flipped = bytearray(data)
    flipped[data.index(b"\n") + 40] ^= 1
    path.write_bytes(flipped)
    assert (read_segment(path)[1], read_segment(path)[2]) == (whole[1:], 1)
    result = import_samples(a_history(tmp_path), tmp_path / "spool")
    assert (result.imported, result.rejected_count) == (1, 1)
    path.write_bytes(b"something else\n")
    assert import_samples(open_history(tmp_path / "h"), tmp_path / "spool").rejected_count == 1
    with pytest.raises(SamplingError, match="no spool in"):
        import_samples(open_history(tmp_path / "h"), tmp_path / "none")


def spool_lines(job: str, begin_s: int, seconds: int) -> list[Slice]:
    """What a job alone on a GPU at half its use gives: a line for each ten seconds."""
    return [
        Slice(
            job,
            at * 1000,
            (at + 10) * 1000,
            10,
            10_000.0,
            10_000.0,
            5000.0,
            2500.0,
            None,
            None,
            1.0,
            0.5,
            0.25,
        )
        for at in range(begin_s, begin_s + seconds, 10)
    ]


def sampled(history: History) -> list[tuple[object, ...]]:
    with history.reading() as (database, index):
        files = [str(history.folder / name) for name in index.usage]
        return database.execute(
            "SELECT source, job_id, begin_ms // 1000, end_ms // 1000, samples, watched_ms, use_ms "
            "FROM read_parquet(?) ORDER BY source, job_id, begin_ms",
            [files],
        ).fetchall()


@pytest.mark.slow
def test_only_what_was_appended_to_a_segment_is_read(tmp_path: Path) -> None:
    spool, once, parts = tmp_path / "spool", open_history(tmp_path / "once"), open_history(tmp_path / "parts")
    all_lines = sorted(
        spool_lines("1", BASE_S + 1800, 9000)
        + spool_lines("2", BASE_S + 5000, 60)
        + spool_lines("2", BASE_S + 6000, 60),
        key=lambda each: each.end_ms,
    )
    read, results = [], []
    with SpoolWriter(spool, "node1", "c", 1000) as writer:
        for begin, end in ((0, 300), (300, 301), (301, 700), (700, len(all_lines))):
            writer.write(all_lines[begin:end])
            results.append(import_samples(parts, spool))
            read.append(results[-1].read)
    assert import_samples(parts, spool).read == 0
    import_samples(once, spool)
    assert sampled(parts) == sampled(once)
    assert sum(row[4] for row in sampled(once)) == 10 * len(all_lines)  # type: ignore[misc]
    assert len([row for row in sampled(once) if row[1] == "2"]) == 2  # the gap parts two tries of it
    # The second import read the open hour alone, and changed its one row.
    assert (results[1].read, results[1].imported, results[1].updated) == (1, 0, 1)
    parts.undo()
    assert sum(row[4] for row in sampled(parts)) == 7000  # type: ignore[misc]
    import_samples(parts, spool)
    assert sampled(parts) == sampled(once)


def test_a_segment_that_an_earlier_berth_read_whole_counts_once(tmp_path: Path) -> None:
    spool, history = tmp_path / "spool", open_history(tmp_path / "h")
    with SpoolWriter(spool, "node1", "c", 1000) as writer:
        writer.write(spool_lines("1", BASE_S, 7200))
    (path,) = segments(spool)
    whole = UsageRow(
        *("sampled", path.stem, "node1", "c", "1", BASE_S * 1000, (BASE_S + 7200) * 1000, 7200, 7.2e6, 7.2e6),
        *(3.6e6, 1.8e6, None, None, 720.0, 0.5, 0.25),
    )
    import_usage(history, [whole])
    import_samples(history, spool)
    assert sorted(row[4] for row in sampled(history)) == [10, 3590, 3600]  # type: ignore[type-var]


def test_lines_that_fit_their_checksum_and_say_nonsense_are_counted(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    with SpoolWriter(spool, "node1", "c", 1000) as writer:
        writer.write(spool_lines("1", BASE_S, 20))
    (path,) = segments(spool)
    texts = [
        b'{"job_id":"1","begin_ms":1,"end_ms":2,"samples":"many"}',
        b'{"job_id":"1","begin_ms":1,"end_ms":2,]}',
        b"[]",
        b'"text"',
        b"",
    ]
    with path.open("ab") as file:
        for text in texts:
            file.write(b"%08x %s\n" % (zlib.crc32(text), text))
    result = import_samples(open_history(tmp_path / "h"), spool)
    assert (result.imported, result.rejected_count) == (1, 5)


def test_a_clock_that_jumps_counts_no_time_that_nobody_saw(tmp_path: Path) -> None:
    looks = Looks([[gpu(ProcessReading(10, GIB, 60.0))]] * 6)
    read = looks.read

    def jumping() -> list[GpuReading]:
        looks.now += {3: 7200.0, 5: -9000.0}.get(looks.at, 0.0)
        return read()

    looks.read = jumping  # type: ignore[method-assign]
    looks.sampled(tmp_path, {10: "1"}, flush_ms=0)
    (path,) = segments(tmp_path / "spool")
    _, slices, _ = read_segment(path)
    assert sum(each.watched_ms for each in slices) <= 10_000
    assert all(isinstance(each, Slice) and each.watched_ms <= 3000 for each in slices)


# --- over the fake NVML ----------------------------------------------------------------------------


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts programs on a fake card of their own; ends them."""
    pytest.importorskip("pynvml", reason="the extra 'sample' is not installed")
    if shutil.which("cc") is None or shutil.which("make") is None:
        pytest.skip("no C compiler to build the fake driver with")
    subprocess.run(["make", "-s", "-C", str(ROOT / "native"), "tests"], check=True, capture_output=True)
    started: list[subprocess.Popen[str]] = []
    base = {
        name: value for name, value in os.environ.items() if not name.startswith(("BERTH_", "LD_", "SLURM_"))
    }
    base |= {
        "LD_LIBRARY_PATH": str(ROOT / "build" / "native" / "fake"),
        "BERTH_FAKE_CARD": str(tmp_path / "card"),
        "BERTH_FAKE_GPUS": "1",
    }

    def start(*words: object, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [str(word) for word in words],
            env=base | environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


BERTH = Path(sys.executable).parent / "berth"


def a_program(start: Callable[..., subprocess.Popen[str]], job: str, mib: int, kernel_ms: int) -> None:
    process = start(
        sys.executable, Path(__file__).parent / "gpu_program.py", mib, kernel_ms, SLURM_JOB_ID=job
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == "ready\n", line


@pytest.mark.slow
def test_a_lost_gpu_does_not_end_the_sampling_of_the_others(
    tmp_path: Path, fake: Callable[..., subprocess.Popen[str]]
) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "7").write_text("gpus=0\n")
    spool = tmp_path / "spool"
    words = (BERTH, "sample", "--spool", spool, "--interval", "0.1", "--for", "0.5", "--node", "n1")
    sampler = fake(
        *words, "--prolog-dir", tmp_path / "jobs", BERTH_FAKE_GPUS="2", BERTH_FAKE_NVML="lost"
    )  # fmt: skip
    out, _ = sampler.communicate(timeout=240)
    assert sampler.returncode == 0, out
    assert out.count("the other GPUs are sampled on") == 1
    (path,) = segments(spool)
    assert {each.job_id for each in read_segment(path)[1]} == {"7"}
    assert (path.stat().st_mode & 0o777, spool.stat().st_mode & 0o777) == (0o640, 0o750)
    alone = fake(*words, BERTH_FAKE_NVML="lost", BERTH_FAKE_CARD=str(tmp_path / "other"))
    out, _ = alone.communicate(timeout=240)
    assert (alone.returncode, "no GPU is left to sample" in out) == (2, True), out


@pytest.mark.slow
def test_two_jobs_on_one_fake_gpu_are_sampled_apart(
    tmp_path: Path, fake: Callable[..., subprocess.Popen[str]]
) -> None:
    a_program(fake, "101", 4096, 30)
    a_program(fake, "102", 1024, 10)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "103").write_text("gpus=0\n")
    spool = tmp_path / "spool"
    words = [
        "--interval",
        "0.2",
        "--flush",
        "0.5",
        "--for",
        "4",
        "--prolog-dir",
        tmp_path / "jobs",
        "--node",
        "n1",
    ]
    sampler = fake(BERTH, "sample", "--spool", spool, *words)
    out, _ = sampler.communicate(timeout=240)
    assert sampler.returncode == 0, out
    (path,) = segments(spool)
    _, slices, broken = read_segment(path)
    assert broken == 0
    totals = {
        job: (
            sum(each.use_ms or 0 for each in slices if each.job_id == job),
            sum(each.mem_ms or 0 for each in slices if each.job_id == job),
            sum(each.gpu_ms for each in slices if each.job_id == job),
        )
        for job in ("101", "102", "103")
    }
    large, small, idle = (use / held for use, _, held in totals.values())
    assert large > 1.2 * small > 0  # 30 ms of every 40, and 10
    assert large + small <= 1.01
    assert idle == 0
    assert [round(mem / held, 4) for _, mem, held in totals.values()] == [0.25, 0.0625, 0.0]
    joules = sum(each.energy_j or 0 for each in slices)
    watched = sum(each.watched_ms for each in slices if each.job_id == "101") / 1000
    assert joules / watched == pytest.approx(100, rel=0.1)  # the card's power, all of it and once


@pytest.mark.slow
def test_a_killed_sampler_has_written_what_it_had_flushed(
    tmp_path: Path, fake: Callable[..., subprocess.Popen[str]]
) -> None:
    a_program(fake, "101", 64, 5)
    spool = tmp_path / "spool"
    sampler = fake(BERTH, "sample", "--spool", spool, "--interval", "0.1", "--flush", "0.2", "--node", "n1")
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        if spool.is_dir() and any(read_segment(path)[1] for path in segments_or_none(spool)):
            break
        assert sampler.poll() is None
        time.sleep(0.1)
    sampler.send_signal(signal.SIGKILL)
    sampler.communicate()
    (path,) = segments(spool)
    _, slices, broken = read_segment(path)
    assert slices
    assert {each.job_id for each in slices} == {"101"}
    assert broken <= 1
    again = fake(BERTH, "sample", "--spool", spool, "--interval", "0.1", "--for", "0.5", "--node", "n1")
    out, _ = again.communicate(timeout=240)
    assert again.returncode == 0, out
    assert len(segments(spool)) == 2


def segments_or_none(spool: Path) -> list[Path]:
    try:
        return [path for path in segments(spool) if path.stat().st_size > 0]
    except SamplingError:
        return []


def test_a_node_without_a_driver_is_told_so(tmp_path: Path) -> None:
    pytest.importorskip("pynvml", reason="the extra 'sample' is not installed")
    environment = {**os.environ, "LD_LIBRARY_PATH": ""}
    words = [str(BERTH), "sample", "--spool", str(tmp_path / "s"), "--for", "1"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=240, check=False)
    if done.returncode == 0:
        pytest.skip("this machine has an NVIDIA driver")
    assert done.returncode == 2
    assert "berth sample needs NVIDIA's driver" in done.stderr
    assert not (tmp_path / "s").exists()


def test_rows_of_an_unnamed_cluster_find_their_job_in_any(tmp_path: Path) -> None:
    history = a_history(tmp_path)
    Looks([[gpu(ProcessReading(10, GIB, 60.0))]] * 10).sampled(tmp_path, {10: "1"})
    (path,) = segments(tmp_path / "spool")
    _, slices, _ = read_segment(path)
    path.unlink()
    with SpoolWriter(tmp_path / "spool", "node1", "", 1000) as writer:
        writer.write([replace(each) for each in slices])
    import_samples(history, tmp_path / "spool")
    assert [r.gpu_use_mean for r in history.records()] == [pytest.approx(0.25)]


@pytest.mark.parametrize("cause", ["no file", "no first line"])
def test_a_spool_that_cannot_begin_its_next_segment_says_so_and_keeps_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    one = Slice("1", 0, 1000, 1, 1000.0, 1000.0, *(None,) * 7)
    original = os.open
    with SpoolWriter(tmp_path, "node1", "c", 1000) as writer, monkeypatch.context() as patch:
        writer.write([one])
        patch.setattr("berth.sampling.spool.LARGEST_BYTES", 1)
        if cause == "no file":
            patch.setattr(
                os, "open", lambda path, *more: full() if ".spool" in str(path) else original(path, *more)
            )
        else:
            patch.setattr(os, "write", full)
        for _ in range(2):  # once more, as who flushes at the end does
            with pytest.raises(SamplingError, match="cannot be written to: No space left"):
                writer.write([one])
    (segment,) = segments(tmp_path)
    assert read_segment(segment)[1:] == ([one], 0)
