"""Whether a compute limit is kept, and whether launches stay smooth, by the fake driver's own ledger.

    python bench/partition_shares.py [--seconds 6] [--json FILE]

Kernels of 1, 132, 2,000 and 20,000 blocks take 0.1 ms for every 132 blocks; shares are of one process and of three that
share a partition. Then launches of one kernel at a share of 50 %: how long the longest was kept.

With `--nvml`, instead: kernels whose launches differ, short kernels beside long ones and two partitions that may
burst, under each kind of NVML that native/tests/fake.h knows, by the simulated clock.

Each is run twice: by a simulated clock, which passes only while every process sleeps and so shows what the library
does on any machine (native/tests/clock.c), and by this machine's own, which shows what the machine adds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
NATIVE = ROOT / "build" / "native"
POINTS = 3.0
"""How far from the share that was set, in per cent of the GPU's time."""
STALL_MS = 20.0


@dataclass(frozen=True)
class Seen:
    """What the processes of a partition used together, in per cent, and their longest launch."""

    used_pct: float
    longest_ms: float


def build() -> Path:
    subprocess.run(["make", "-s", "-C", str(ROOT / "native"), "tests"], check=True)
    program = NATIVE / "partition_shares"
    source = ROOT / "bench" / "partition_shares.c"
    link = [f"-L{NATIVE / 'fake'}", "-l:libcuda.so.1", "-ldl"]
    subprocess.run([shutil.which("cc") or "cc", "-O2", "-std=c11", source, "-o", program, *link], check=True)
    return program


def shares(program: Path, core_pct: int, processes: Sequence[Sequence[str]], *, simulated: bool) -> Seen:
    """Processes of one partition, all running at once."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="berth-bench-", dir=parent) as folder:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("BERTH_", "LD_"))
        }
        preload = [str(NATIVE / "libberth.so")]
        if simulated:
            preload.insert(0, str(NATIVE / "libclock.so"))
            environment |= {
                "BERTH_TEST_CLOCK": f"{folder}/clock",
                "BERTH_TEST_CLOCK_PARTIES": str(len(processes)),
            }
        environment |= {
            "BERTH_FAKE_CARD": f"{folder}/card",
            "LD_LIBRARY_PATH": str(NATIVE / "fake"),
            "LD_PRELOAD": " ".join(preload),
            "BERTH_REGION": f"{folder}/region",
            "BERTH_GPU_MEM_MIB": "8192",
            "BERTH_GPU_CORE_PCT": str(core_pct),
        }
        running = [
            subprocess.Popen([program, *words], env=environment, stdout=subprocess.PIPE, text=True)
            for words in processes
        ]
        answers = [dict(json.loads(process.communicate()[0])) for process in running]
    return Seen(
        sum(answer["share_pct"] for answer in answers),
        max(answer["longest_launch_ms"] for answer in answers),
    )


KINDS = ("", "host", "own", "next", "hidden", "old", "total", "missing", "lies")
"""What NVML may be like (native/tests/fake.h)."""
CASES = {
    "30: a tenth of a ms, each fourth 5 ms": ("30 vary_100_5000_4",),
    "30: a tenth of a ms, each twentieth 9 ms": ("30 vary_100_9000_20 sync",),
    "30: 0.1 ms and 50 ms in turns": ("30 spin_100,spin_50000",),
    "30 burst, alone": ("30+ wave_1000",),
    "30 and 50: the same beside 1 ms": ("30 vary_100_5000_4", "50 wave_1000"),
    "20 and 70: 0.1 ms beside 50 ms": ("20 spin_100 sync", "70 spin_50000"),
    "20 and 80 burst: 1 ms": ("20+ wave_1000", "80+ wave_1000"),
}
"""Shares in per cent, `+` if the partition may burst, and what each of the partitions launches."""


def kinds(program: Path, seconds: float) -> list[dict[str, object]]:
    """Every case under every kind of NVML: what each partition used, in per cent."""
    figures: list[dict[str, object]] = []
    print(f"{'':>42}" + "".join(f"{kind or 'plain':>13}" for kind in KINDS))
    for case, partitions in CASES.items():
        row = f"{case:>42}"
        for kind in KINDS:
            used = beside(program, partitions, kind, seconds)
            row += f"{' / '.join(f'{share:.1f}' for share in used):>13}"
            figures.append({"case": case, "nvml": kind or "plain", "used_pct": used})
        print(row, flush=True)
    return figures


def beside(program: Path, partitions: Sequence[str], kind: str, seconds: float) -> list[float]:
    """Partitions of one process each, the second begun two seconds after the first."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="berth-bench-", dir=parent) as folder:
        running = []
        for number, partition in enumerate(partitions):
            share, kernel, *wait = partition.split()
            environment = {
                name: value for name, value in os.environ.items() if not name.startswith(("BERTH_", "LD_"))
            } | {
                "BERTH_TEST_CLOCK": f"{folder}/clock",
                "BERTH_TEST_CLOCK_PARTIES": str(len(partitions)),
                "BERTH_FAKE_CARD": f"{folder}/card",
                "BERTH_FAKE_CONTEXT_MIB": "300",
                "BERTH_FAKE_NVML": kind,
                "LD_LIBRARY_PATH": str(NATIVE / "fake"),
                "LD_PRELOAD": f"{NATIVE / 'libclock.so'} {NATIVE / 'libberth.so'}",
                "BERTH_REGION": f"{folder}/region-{number}",
                "BERTH_GPU_MEM_MIB": "8192",
                "BERTH_GPU_CORE_PCT": share.rstrip("+"),
                "BERTH_GPU_BURST": "1" if share.endswith("+") else "0",
            }
            late = [f"after_{2000 * number}"] if number else []
            words = [str(program), kernel, "132", str(seconds), *wait, *late]
            running.append(subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True))
        return [float(json.loads(process.communicate()[0])["share_pct"]) for process in running]


def write(path: Path | None, figures: object) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--nvml", action="store_true", help="under each kind of NVML")
    words = parser.parse_args()
    program, seconds = build(), str(words.seconds)
    if words.nvml:
        write(words.json, kinds(program, max(words.seconds, 30)))
        return
    figures: list[dict[str, float]] = []
    print(f"{'':>26}{'simulated clock':>26}{'this machine':>26}")
    print(f"{'share':>7}{'blocks':>8}{'processes':>11}" + f"{'used':>13}{'longest':>13}" * 2)
    for core_pct in (10, 20, 50, 80):
        for blocks in (1, 132, 2000, 20000):
            for count in (1, 3):
                runners = [("wave_100", str(blocks), seconds)] * count
                ideal, own = (
                    shares(program, core_pct, runners, simulated=simulated) for simulated in (True, False)
                )
                kept = (
                    "" if max(abs(seen.used_pct - core_pct) for seen in (ideal, own)) <= POINTS else "  <--"
                )
                row = f"{core_pct:>5} %{blocks:>8}{count:>11}"
                row += "".join(
                    f"{seen.used_pct:>11.1f} %{seen.longest_ms:>10.1f} ms" for seen in (ideal, own)
                )
                print(row + kept, flush=True)
                figures.append(
                    {
                        "core_pct": core_pct,
                        "blocks": blocks,
                        "processes": count,
                        "used_pct_simulated": ideal.used_pct,
                        "used_pct": own.used_pct,
                        "longest_launch_ms_simulated": ideal.longest_ms,
                        "longest_launch_ms": own.longest_ms,
                    }
                )
    print(f"\nthe longest launch at 50 %, asked below {STALL_MS:g} ms for kernels under 10 ms")
    print(f"{'kernel':>10}{'simulated clock':>18}{'this machine':>16}")
    for kernel_us in (100, 1000, 2000, 5000, 8000, 9900):
        runner = [(f"spin_{kernel_us}", "1", seconds)]
        ideal, own = (shares(program, 50, runner, simulated=simulated) for simulated in (True, False))
        print(
            f"{kernel_us / 1000:>7.1f} ms{ideal.longest_ms:>15.1f} ms{own.longest_ms:>13.1f} ms", flush=True
        )
        figures.append(
            {
                "kernel_us": kernel_us,
                "core_pct": 50,
                "longest_launch_ms_simulated": ideal.longest_ms,
                "longest_launch_ms": own.longest_ms,
            }
        )
    write(words.json, figures)


if __name__ == "__main__":
    main()
