"""What `berth sample` costs a node: processor time at one look a second, over the fake NVML with eight GPUs.

Programs hold memory and run kernels on the fake card, so that each look finds processes to tie to jobs. Prints the
sampler's processor time as a part of one core (asked: below 1 %), and writes it as JSON. On a node with an NVIDIA
driver, --real samples its own cards.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import BENCH, save

ROOT = BENCH.parent
PROGRAM = ROOT / "tests" / "sampling" / "gpu_program.py"


def processor_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--programs", type=int, default=4)
    parser.add_argument("--real", action="store_true")
    given = parser.parse_args()
    environment = dict(os.environ)
    if not given.real:
        subprocess.run(["make", "-s", "-C", str(ROOT / "native"), "tests"], check=True)
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
        if not given.real:
            environment |= {
                "LD_LIBRARY_PATH": str(ROOT / "build" / "native" / "fake"),
                "BERTH_FAKE_CARD": f"{folder}/card",
                "BERTH_FAKE_GPUS": "8",
            }
        programs = []
        for number in range(0 if given.real else given.programs):
            words = [sys.executable, str(PROGRAM), "256", "50"]
            env = {**environment, "SLURM_JOB_ID": str(number)}
            programs.append(subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL))
        berth = Path(sys.executable).parent / "berth"
        words = [str(berth), "sample", "--spool", f"{folder}/spool", "--node", "bench"]
        sampler = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)
        try:
            time.sleep(5)  # what starting costs is not counted
            begin, wall = processor_s(sampler.pid), time.monotonic()
            time.sleep(given.seconds)
            percent = 100 * (processor_s(sampler.pid) - begin) / (time.monotonic() - wall)
            peak_kib = next(
                int(line.split()[1])
                for line in Path(f"/proc/{sampler.pid}/status").read_text().splitlines()
                if line.startswith("VmHWM")
            )
            written = sum(path.stat().st_size for path in Path(f"{folder}/spool").iterdir())
        finally:
            for process in (sampler, *programs):
                process.terminate()
                process.wait()
    result = {
        "seconds": given.seconds,
        "programs": len(programs),
        "core_pct": percent,
        "peak_mib": peak_kib / 1024,
        "spool_bytes_per_hour": written * 3600 / (given.seconds + 5),
    }
    for name, value in result.items():
        print(f"{name:24} {value:12,.2f}")
    save("sample_overhead", result)


if __name__ == "__main__":
    main()
