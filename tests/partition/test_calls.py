"""Each family of driver calls keeps to the limit, by the driver's own ledger (native/tests/check_*.c)."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from tests.partition.conftest import Card

from berth.partition.regions import read, regions_in

FAMILIES = [
    "linear", "pitch", "managed", "array", "mipmap", "vmm", "nccl", "async", "async_per_thread", "pool",
    "graph", "capture", "errno", "ipc", "view", "threads", "fork", "start_beside", "guest", "launch", "data",
    "legacy",
]  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_of_calls_is_accounted_to_the_byte(card: Card, family: str) -> None:
    assert card.run("check", family) == (0, "")


STRICTER: dict[str, dict[str, str]] = {
    "no_context": {},
    "large_module": {},
    "module_that_stays": {"BERTH_FAKE_ERRORS": "cuModuleUnload:0:999,cuLibraryUnload:0:999"},
    "huge_module": {
        "BERTH_FAKE_MEM_MIB": "65536",
        "BERTH_GPU_MEM_MIB": "16384",
        "BERTH_FAKE_WATCH": f"1:{16 << 30}",
    },
    "graphs_apart": {"BERTH_FAKE_LIKE": "nodes"},
    "parts": {},
    "imported_pool": {},
    "first_use": {"BERTH_FAKE_LIKE": "lazy"},
    "first_kernel": {"BERTH_FAKE_LIKE": "lazy"},
    "heap": {"BERTH_FAKE_LIKE": "heap"},
    "deep_function": {},
    "passed_on": {},
    "huge_function": {
        "BERTH_FAKE_LIKE": "lazy",
        "BERTH_FAKE_MEM_MIB": "65536",
        "BERTH_GPU_MEM_MIB": "16384",
        "BERTH_FAKE_WATCH": f"1:{16 << 30}",
    },
    "fork_while_growing": {},
    "failing": {},
    "limits_at_once": {"BERTH_FAKE_LIKE": "slow"},
    "limits_of_two_contexts": {"BERTH_FAKE_LIKE": "slow"},
    "function_when_full": {"BERTH_FAKE_LIKE": "lazy", "BERTH_FAKE_WATCH": "0"},
    "kernels_come_and_go": {"BERTH_FAKE_LIKE": "lazy"},
    "handle_again": {"BERTH_FAKE_LIKE": "lazy"},
    "missing_name": {"BERTH_FAKE_LIKE": "lazy"},
    "small_function": {"BERTH_FAKE_LIKE": "lazy"},
    "green_alone": {
        "BERTH_FAKE_CONTEXT_MIB": "20",
        "BERTH_FAKE_GREEN_KIB": str(9 << 10),
        "BERTH_FAKE_NVML": "missing",
    },
    "parts_and_context": {},
    "bound_on_two_gpus": {
        "BERTH_GPU_MEM_MIB": "0:64,1:32",
        "BERTH_FAKE_WATCH": "0",
        "BERTH_FAKE_GPUS": "2",
    },
}
"""What real drivers do that a kind one does not, and the card or limits that each is about."""


@pytest.mark.parametrize("family", STRICTER)
def test_what_a_stricter_driver_does_is_accounted_to_the_byte(card: Card, family: str) -> None:
    card.settings = STRICTER[family] | {"BERTH_TEST_CUBIN": str(card.folder / "cubin")}
    assert card.run("check", family) == (0, "")


@pytest.mark.parametrize("family", ["first_use", "first_kernel", "huge_function"])
def test_a_function_that_comes_when_it_is_asked_for_is_counted(card: Card, family: str) -> None:
    """By a driver that has cuFuncLoad besides."""
    card.settings = STRICTER[family] | {"BERTH_FAKE_LIKE": "lazy,asked"}
    assert card.run("check", family) == (0, "")


@pytest.mark.parametrize("family", ["large_module", "huge_module", "first_use", "huge_function"])
def test_a_module_is_as_large_as_the_card_says_where_nvml_does_not(card: Card, family: str) -> None:
    alone = card.folder / "alone"  # a driver without its management library
    alone.mkdir()
    (alone / "libcuda.so.1").symlink_to(card.native / "fake" / "libcuda.so.1")
    card.settings = STRICTER[family] | {"LD_LIBRARY_PATH": str(alone)}
    assert card.run("check", family) == (0, "")


HOLES: dict[str, dict[str, str]] = {
    "streams_and_contexts": {"BERTH_FAKE_GPUS": "2"},
    "green_stream": {},
    "green_ended": {},
    "tiles": {},
    "export_and_release": {},
    "export_elsewhere": {},
    "rounding": {"BERTH_FAKE_STEP_KIB": "2048"},
}
"""Ways past the limit, and false refusals, that only a strict driver shows."""
TOTAL_USED = 64
"""Where the sum is in a file of counters (native/region.h)."""
TABLE = "111 possible, {} uncounted, {} falsely refused\n"


@pytest.mark.parametrize("hole", HOLES)
def test_a_way_past_the_limit_is_closed(card: Card, hole: str) -> None:
    card.settings = HOLES[hole]
    said = TABLE.format(0, 0) if hole == "streams_and_contexts" else ""
    assert card.run("check", hole) == (0, said)


FALLBACKS = {
    "": {"cuStreamGetDevice:0:801,cuStreamGetGreenCtx:0:801": 0},
    "unnamed": {
        "cuStreamGetDevice:0:801": 0,
        "cuStreamGetDevice:0:801,cuStreamGetGreenCtx:0:801": 10,
        "cuStreamGetDevice:0:801,cuStreamGetGreenCtx:0:801,cuStreamGetCtx:0:801": 30,
    },
}
"""By kind of fake driver (`BERTH_FAKE_LIKE`): the calls that an older driver lacks, and how many combinations are
refused for that."""


@pytest.mark.parametrize(("like", "errors"), [(like, row) for like in FALLBACKS for row in FALLBACKS[like]])
def test_a_stream_whose_gpu_is_unknown_is_refused_and_never_uncounted(
    card: Card, like: str, errors: str
) -> None:
    card.settings = {"BERTH_FAKE_GPUS": "2", "BERTH_FAKE_ERRORS": errors, "BERTH_FAKE_LIKE": like}
    assert card.run("check", "streams_and_contexts") == (0, TABLE.format(0, FALLBACKS[like][errors]))


def test_a_gpu_that_reaches_the_systems_memory_is_told_of_once_with_what_turns_it_off(card: Card) -> None:
    card.settings = {"BERTH_FAKE_LIKE": "hmm"}
    for _ in range(2):
        assert card.run("check", "linear") == (0, "")
    assert card.log.count("uvm_disable_hmm=1 of nvidia-uvm (HMM) or uvm_ats_mode=0 (ATS) turns that off") == 1


def test_a_store_into_the_counters_lifts_no_limit(card: Card) -> None:
    with card.start("check", "hold") as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        region = card.folder / "region"
        (use,) = region.glob("*.use")
        with use.open("r+b") as file:
            file.seek(TOTAL_USED)
            file.write(bytes(8))
        code, said = card.run("check", "linear")
        assert (code, "cuMemAlloc_v2(&a, LIMIT - 1)" in said.replace("(64 * (1ull << 20))", "LIMIT")) == (
            1,
            True,
        )
        (now,) = (read(region, uuid, "") for uuid in regions_in(region))
        assert (now.used_bytes, now.mended) == (40 << 20, 1)
        with use.open("r+b") as file:  # more than there is: nobody is refused for long
            file.seek(TOTAL_USED)
            file.write((1 << 40).to_bytes(8, "little"))
        assert card.run("check", "linear")[0] == 1
        (now,) = (read(region, uuid, "") for uuid in regions_in(region))
        assert (now.used_bytes, now.mended) == (40 << 20, 2)
        assert holder.communicate("\n") == ("", None)
        assert holder.returncode == 0


FAILING = [
    "cuMemAlloc_v2", "cuMemAllocManaged", "cuMemFree_v2", "cuArray3DCreate_v2", "cuArrayDestroy", "cuMemCreate",
    "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle",
    "cuMemMapArrayAsync", "cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuMemFreeAsync", "cuMemPoolCreate",
    "cuMemPoolDestroy", "cuMemPoolGetAttribute", "cuMemPoolTrimTo", "cuModuleLoadData", "cuModuleUnload",
    "cuCtxSetLimit", "cuCtxGetLimit", "cuImportExternalMemory", "cuDestroyExternalMemory", "cuGreenCtxCreate",
    "cuGreenCtxDestroy", "cuDevicePrimaryCtxRetain", "cuGraphInstantiateWithFlags", "cuGraphUpload",
    "cuGraphLaunch", "cuGraphExecDestroy", "cuDeviceGraphMemTrim", "cuDeviceGetGraphMemAttribute",
    "cuStreamSynchronize", "cuCtxSynchronize", "cuCtxGetDevice", "cuDeviceGetMemPool",
]  # fmt: skip


@pytest.mark.parametrize("call", FAILING)
@pytest.mark.parametrize("nth", [1, 2])
def test_a_call_that_fails_leaves_the_books_in_order(card: Card, call: str, nth: int) -> None:
    code, said = card.run("check", "failing", BERTH_FAKE_ERRORS=f"{call}:{nth}:999")
    assert (code, said) in ((0, ""), (1, said))
    if code != 0:  # the program stopped at the start, or nothing failed that it could see
        assert "claims.h:" in said or "failed != 0" in said


def test_a_child_forked_while_another_thread_joins_does_not_hold_its_lock(card: Card) -> None:
    preload = f"{card.native / 'libslow.so'} {card.native / 'libberth.so'}"
    assert card.run("check", "fork_amid_join", LD_PRELOAD=preload) == (0, "")


def test_contexts_and_modules_count_as_the_driver_takes_them(card: Card) -> None:
    card.settings = {"BERTH_FAKE_CONTEXT_MIB": "10", "BERTH_FAKE_MODULE_KIB": "1024"}
    assert card.run("check", "context") == (0, "")


def test_measuring_launches_spoils_no_other_threads_capture(card: Card) -> None:
    assert card.run("check", "capture_beside", BERTH_GPU_CORE_PCT="50") == (0, "")


def by_a_clock_of_its_own(card: Card, gpus: int) -> dict[str, str]:
    return {
        "BERTH_FAKE_GPUS": str(gpus),
        "BERTH_FAKE_WATCH": "",
        "BERTH_GPU_CORE_PCT": "50",
        "BERTH_TEST_CLOCK": str(card.folder / "clock"),
        "BERTH_TEST_CLOCK_PARTIES": "1",
        "LD_PRELOAD": f"{card.native / 'libclock.so'} {card.native / 'libberth.so'}",
    }


CHARGES = {
    "paced_in_turns": [2_000, 2_000],
    "paced_apart": [10_000, 20],  # 20 us is the guess until it is measured
    "paced_together": [40_000, 40_000],
    "paced_after_reset": [42_000],
    "paced_after_release": [42_000],
}
"""What each GPU is charged, in us."""
THREADS = ["paced_threads", "paced_exit"]


@pytest.mark.parametrize("program", CHARGES)
def test_each_gpu_is_charged_what_ran_on_it(card: Card, program: str) -> None:
    card.settings = by_a_clock_of_its_own(card, len(CHARGES[program]))
    assert card.run("check", program) == (0, "")
    region = card.folder / "region"
    charged = [read(region, uuid, "").gpu_ns // 1000 for uuid in regions_in(region)]
    assert charged == pytest.approx(CHARGES[program], abs=200)  # a thread buys as much ahead


@pytest.mark.parametrize("program", THREADS)
def test_time_that_threads_bought_and_did_not_use_is_given_back(card: Card, program: str) -> None:
    """Of 40 threads that launch once: each buys 0.75 ms, and 48 launches take 0.48 ms."""
    card.settings = {"BERTH_FAKE_WATCH": "", "BERTH_GPU_CORE_PCT": "50"}
    assert card.run("check", program) == (0, "")
    region = card.folder / "region"
    (charged_ns,) = (read(region, uuid, "").gpu_ns for uuid in regions_in(region))
    assert 480_000 <= charged_ns < 2_000_000


def test_measuring_in_several_contexts_leaves_no_events(card: Card) -> None:
    card.settings = by_a_clock_of_its_own(card, 2)
    assert card.run("check", "paced_events") == (0, "")


def test_what_a_process_held_that_became_another_program_is_given_back(card: Card) -> None:
    other = card.start("check", "became_other")
    assert other.stdout is not None
    assert other.stdout.readline() == "became\n"
    deadline = time.monotonic() + 120
    while (seen := card.run("check", "linear")) != (0, "") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert seen == (0, "")
    assert other.poll() is None
    other.communicate("\n")


def test_calls_that_an_old_driver_lacks_say_so_to_a_linked_program(card: Card) -> None:
    old = str(card.native / "old")
    assert card.run("missing", LD_LIBRARY_PATH=old) == (
        0,
        "500 500 500 2 0\n",
    )  # not found, out of memory, success


def test_every_family_has_its_snippet_run(native: Path) -> None:
    listed = subprocess.run(
        [native / "check", "--list"], capture_output=True, text=True, check=True
    ).stdout.split()
    apart = {
        *HOLES,
        "import_elsewhere",
        "context",
        "capture_beside",
        "became_other",
        "none",
        "two_gpus",
        "total",
        "over",
        "up",
        "resized",
        "hold",
        "half",
        *CHARGES,
        *THREADS,
        *STRICTER,
        "refused_often",
        "paced_events",
        "fork_amid_join",
        "grows",
        "asks_in_no_capture",
        "asks_when_a_captured_stream_is_gone",
        "asks_beside_others",
        "forks_while_it_asks",
    }
    assert set(listed) - apart == set(FAMILIES)


def test_limits_by_index_apply_to_that_gpu_and_others_get_nothing(card: Card) -> None:
    card.settings = {"BERTH_FAKE_GPUS": "3"}
    assert card.run("check", "two_gpus", BERTH_GPU_MEM_MIB="0:64,1:32", BERTH_FAKE_WATCH=None) == (0, "")


UUIDS = ["b0b7bec5-ccd3-dae1-e8ef-f6fd040b1219", "c0c7ced5-dce3-eaf1-f8ff-060d141b2229"]


@pytest.mark.parametrize(
    ("visible", "total"),
    [("0", "64\n"), ("1", "32\n"), ("1,0", "32\n"), (f"GPU-{UUIDS[1]}", "32\n"), (f"MIG-{UUIDS[0]}", "64\n")],
)
def test_a_limit_follows_the_gpu_however_the_program_names_it(card: Card, visible: str, total: str) -> None:
    card.settings = {"BERTH_FAKE_GPUS": "2"}
    limits = {"BERTH_GPU_MEM_MIB": "0:64,1:32", "BERTH_FAKE_WATCH": None}
    assert card.run("check", "total", CUDA_VISIBLE_DEVICES=visible, **limits) == (0, total)


def test_a_limit_by_uuid(card: Card) -> None:
    assert card.run("check", "total", BERTH_GPU_MEM_MIB=f"GPU-{UUIDS[0]}:48") == (0, "48\n")


@pytest.mark.parametrize(
    "limit",
    [
        "",
        "0",
        "-5",
        "4GB",
        "4G",
        "4096 ",
        "0:",
        ":4",
        "0:4,",
        "0:4,0:5",
        "99:4",
        "0:4;1:5",
        "1e3",
        "99999999999999999999",
    ],
)
def test_a_malformed_limit_gives_no_gpu_and_says_why(card: Card, limit: str) -> None:
    assert card.run("check", "none", BERTH_GPU_MEM_MIB=limit) == (0, "")
    assert f"BERTH_GPU_MEM_MIB='{limit}' is not a limit: a whole number from 1 to" in card.log


@pytest.mark.parametrize("share", ["0", "101", "50%", "-1", "half"])
def test_a_malformed_share_gives_no_gpu_and_says_why(card: Card, share: str) -> None:
    assert card.run("check", "none", BERTH_GPU_CORE_PCT=share) == (0, "")
    assert f"BERTH_GPU_CORE_PCT='{share}' is not a limit: a whole number from 1 to 100" in card.log


def test_a_gpu_that_the_list_of_limits_does_not_name_is_told_of(card: Card) -> None:
    assert card.run("check", "total", BERTH_GPU_MEM_MIB="1:64") == (0, "0\n")
    assert "nothing of GPU 0: the list of limits names others only" in card.log


def test_a_log_that_no_process_reads_delays_no_call(card: Card) -> None:
    os.mkfifo(card.folder / "log")
    assert card.run("check", "none", BERTH_GPU_MEM_MIB="many") == (0, "")


def test_a_region_without_limits_gives_no_gpu(card: Card) -> None:
    assert card.run("check", "none", BERTH_GPU_MEM_MIB=None) == (0, "")
    assert "has no limits in it; make the partition first" in card.log


def test_a_relative_region_gives_no_gpu(card: Card) -> None:
    assert card.run("check", "none", BERTH_REGION="region") == (0, "")
    assert "begin it with /" in card.log


def test_a_limit_above_the_card_is_the_card_and_says_so(card: Card) -> None:
    card.settings = {"BERTH_FAKE_MEM_MIB": "1024"}
    assert card.run("check", "total", BERTH_GPU_MEM_MIB="4096") == (0, "1024\n")
    assert "the limit of 4096 MiB is above the card, which has 1024 MiB" in card.log


def test_without_limits_the_library_is_not_there(card: Card) -> None:
    assert card.run("check", "total", BERTH_GPU_MEM_MIB=None, BERTH_REGION=None) == (0, "16384\n")


def test_what_a_killed_process_held_is_given_back_to_the_next_to_look(card: Card) -> None:
    holder = card.start("check", "hold")
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert card.run("check", "half") == (0, "")  # 24 MiB and no more
    holder.kill()
    holder.wait()
    assert card.run("check", "linear") == (0, "")
    holder.communicate()


def test_a_region_whose_process_died_in_another_pid_namespace_is_given_back(card: Card) -> None:
    command = ["unshare", "--pid", "--fork", "--mount-proc", "true"]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not make pid namespaces")
    environment = card.environment({})
    apart = [
        "unshare",
        "--pid",
        "--fork",
        "--kill-child=KILL",
        "--mount-proc",
        str(card.native / "check"),
        "hold",
    ]
    holder = subprocess.Popen(
        apart, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert card.run("check", "half") == (0, "")
    holder.kill()
    holder.wait()
    holder.communicate()
    deadline = time.monotonic() + 120  # the namespace ends a moment after its first process
    while (seen := card.run("check", "linear")) != (0, "") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert seen == (0, "")


def test_one_killed_at_any_moment_of_its_start_delays_no_other(card: Card) -> None:
    for after_us in range(0, 6000, 300):
        starting = card.start("check", "hold")
        time.sleep(after_us / 1e6)
        starting.kill()
        starting.communicate()
        assert card.run("check", "linear") == (0, "")  # its limit of time is what a stuck lock would reach


@pytest.mark.slow
def test_three_hundred_processes_start_together_on_a_cold_region(card: Card) -> None:
    """Nobody waits for a lock that another holds, and every one has a slot of its own."""
    started = [card.start("check", "up") for _ in range(300)]
    said = [process.stdout.readline() for process in started if process.stdout is not None]
    assert said == ["up\n"] * 300
    region = card.folder / "region"
    (now,) = (read(region, uuid, "") for uuid in regions_in(region))
    assert (now.used_bytes, {process.pid for process in now.processes}) == (
        300,
        {process.pid for process in started},
    )
    assert [process.communicate("\n") for process in started] == [("", None)] * 300
    (now,) = (read(region, uuid, "") for uuid in regions_in(region))
    assert (now.used_bytes, now.processes) == (0, ())


def test_the_refused_call_is_recorded_for_the_operator(card: Card) -> None:
    card.run("check", "linear")
    assert "refused cuMemAlloc of 2 bytes on GPU 0: 1 left" in card.log


def test_a_pipe_in_the_place_of_a_limit_delays_no_start(card: Card) -> None:
    region = card.folder / "region"
    region.mkdir()
    os.mkfifo(region / "b0b7bec5-ccd3-dae1-e8ef-f6fd040b1219.limit")
    with card.start("check", "linear") as process:
        try:
            output, _ = process.communicate(timeout=120)
        finally:
            process.kill()
    assert (process.returncode, "cuInit(0)" in output) == (1, True)


def test_refusals_without_end_are_logged_ever_less_often(card: Card) -> None:
    """Whichever call is refused: 16 lines, then one for each power of two (of 301 refusals)."""
    assert card.run("check", "refused_often") == (0, "")
    assert card.log.count("refused ") == 16 + len([16, 32, 64, 128, 256])
    region = card.folder / "region"
    (now,) = (read(region, uuid, "") for uuid in regions_in(region))
    assert (now.refused, now.refused_bytes) == (301, 2**64 - 1)


def storm(card: Card, *words: str, mib: int) -> dict[str, float]:
    limits = {"BERTH_FAKE_WATCH": f"1:{mib << 20}", "BERTH_GPU_MEM_MIB": str(mib), "BERTH_LOG": None}
    code, output = card.run("storm", *words, **limits)
    assert code == 0, output
    return dict(json.loads(output))


def test_a_child_forked_at_any_system_call_of_growing_books_unmaps_what_is_there(card: Card) -> None:
    assert card.run("ledger", LD_PRELOAD=None) == (0, "14 1 0\n")


@pytest.mark.slow
def test_no_kill_exceeds_the_limit_leaves_anything_or_blocks_others(card: Card) -> None:
    """Five seconds of it; bench/partition_storm.py does the minute, and measures the waits."""
    seen = storm(card, "64", "5", "50", mib=1024)
    assert (seen["violations"], seen["left_bytes"], seen["driver_bytes"], seen["failed"]) == (0, 0, 0, 0)
    assert seen["killed"] == 99
    assert seen["refused"] > 100
    region = card.folder / "region"
    (now,) = (read(region, uuid, "") for uuid in regions_in(region))
    assert (now.used_bytes, now.processes) == (0, ())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["", "hidden"])
def test_contexts_that_are_measured_amid_others_are_charged_what_they_take(card: Card, kind: str) -> None:
    """Contexts of 3 MiB come and go while others allocate, and no process is left out for one charged wrongly."""
    card.settings = {"BERTH_FAKE_CONTEXT_MIB": "3", "BERTH_FAKE_NVML": kind}
    seen = storm(card, "64", "3", "50", mib=1024)
    assert (seen["violations"], seen["left_bytes"], seen["driver_bytes"], seen["failed"]) == (0, 0, 0, 0)
    assert seen["operations"] > 0  # a busy machine does a hundred in this time, a quiet one thousands


def test_contexts_that_begin_at_once_in_a_new_region_stay_under_its_limit(card: Card) -> None:
    """Eight of 300 MiB in 2 GiB, before it is known how large a context is: some are refused."""
    card.settings = {"BERTH_FAKE_CONTEXT_MIB": "300", "BERTH_FAKE_CONTEXT_MS": "20"}
    seen = storm(card, "8", "1", "400", "1", mib=2048)
    assert seen["violations"] == 0
    assert seen["refused"] > 0


@pytest.mark.slow
def test_the_drivers_ledger_sees_who_goes_over(card: Card) -> None:
    """The same storm without the library: a checker that saw nothing then would be none."""
    words, mib = ("16", "3", "50"), 256
    _, output = card.run("storm", *words, LD_PRELOAD=None, BERTH_FAKE_WATCH=f"1:{mib << 20}")
    assert json.loads(output)["violations"] > 0


@pytest.mark.slow
def test_eight_processes_churning_300_mib_stay_under_1_gib(card: Card) -> None:
    seen = storm(card, "8", "3", "1000", "300", mib=1024)
    assert seen["violations"] == 0


@pytest.mark.slow
def test_a_kill_after_any_instruction_of_an_allocation_leaves_nothing(card: Card) -> None:
    """After each of some fourteen hundred that changes shared memory, and after every 16th of the others."""
    card.settings = {"BERTH_FAKE_WATCH": "", "BERTH_LOG": ""}
    region = str(card.folder / "region")
    code, said = card.run("step", str(card.native / "libberth-region.so"), region, UUIDS[0])
    assert code == 0, said
    instructions, kills = map(int, said.split())
    assert instructions > 500
    assert instructions / 16 + 10 < kills < instructions / 4
