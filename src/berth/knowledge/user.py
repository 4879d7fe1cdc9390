"""What users say of their jobs as knowledge: time limits, estimates and the memory that they ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from berth.interference import Speeds
from berth.interference.speeds import unhindered
from berth.knowledge.belief import LONGEST_MS, Spread
from berth.model import GpuModel, Job, Profile, Record, RecordState

MOST_LEARNED = 100_000
"""Jobs of which is remembered how long they ran or what they held; the oldest make room."""
MOST_REQUESTS = 1000
"""Different requests that are remembered; the rarest half makes room."""


class User:
    """Knows what the user said: the estimate, else the time limit, and the memory that the job asks for.

    Estimates and limits that make no sense (0 or less, or beyond 35,000 years) count as not given. There are no
    profiles, so that policies that share GPUs by profiles give each job its GPUs for itself. The usual requests are
    those of the jobs that have ended.
    """

    certain = False
    learns = True

    def __init__(self) -> None:
        self.profiles: Mapping[str, Profile] = {}
        self.speeds: Speeds = unhindered
        self._ran_ms: dict[str, int] = {}  # job -> it has run at least this long
        self._held_mib: dict[str, int] = {}  # job -> it needs more than this
        self._counted: dict[str, int] = {}  # jobs of which an attempt has ended
        self._requests: Counter[Job] = Counter()
        self._usual: tuple[Job, ...] | None = None

    def run_ms(self, job: Job) -> Spread | None:
        """The estimate, else the time limit; twice as long as it has run where it has outlived that."""
        stated = [ms for ms in (job.estimate_ms, job.time_limit_ms) if ms is not None and 0 < ms < LONGEST_MS]
        ran_ms = self._ran_ms.get(job.id, 0)
        if not stated:
            return Spread(2 * ran_ms, ran_ms, 4 * ran_ms, "outlived") if ran_ms else None
        expected_ms = stated[0] if stated[0] > ran_ms else 2 * ran_ms
        # An estimate may be wrong either way; a limit is the most that it can be.
        limit_ms = stated[-1] if job.time_limit_ms == stated[-1] else 2 * expected_ms
        return Spread(expected_ms, min(ran_ms, expected_ms), max(expected_ms, limit_ms), "user")

    def profile(self, job: Job, gpu: GpuModel | None) -> Profile | None:
        """None: users do not tell."""
        return None

    def peak_mem_mib(self, job: Job, gpu: GpuModel | None = None) -> Spread | None:
        """What the job asks for, and more after it ran out of that."""
        asked_mib = max(job.share.mem_mib, self._held_mib.get(job.id, 0))
        return Spread(asked_mib, 0, asked_mib) if asked_mib > 0 else None

    def usual_requests(self) -> Sequence[Job]:
        """Jobs with what those that have ended asked for, in proportion, at most about `MOST_REQUESTS`."""
        if self._usual is None:
            total = sum(self._requests.values())
            scale = MOST_REQUESTS / max(1, total)
            self._usual = (
                tuple(self._requests.elements())
                if scale >= 1
                else tuple(
                    job for job, count in self._requests.items() for _ in range(max(1, round(count * scale)))
                )
            )
        return self._usual

    def observe(self, record: Record) -> None:
        """Remember what it asked for; what was learned of its attempts is forgotten."""
        self._ran_ms.pop(record.job_id, None)
        if record.state is not RecordState.OUT_OF_MEMORY:
            self._held_mib.pop(record.job_id, None)
        if record.job_id in self._counted:
            return  # an attempt of before was counted
        self._counted[record.job_id] = 1
        _bound(self._counted)
        self._usual = None
        request = Job(
            "",
            0,
            None,
            gpus=record.gpus,
            share=record.share,
            cpu_milli=record.cpu_milli or 0,
            mem_mib=record.mem_mib or 0,
        )
        self._requests[request] += 1
        if len(self._requests) > MOST_REQUESTS:
            self._requests = Counter(dict(self._requests.most_common(MOST_REQUESTS // 2)))

    def ran_out_of_memory(self, job: Job, held_mib: int) -> None:
        """It needs more than it held."""
        self._held_mib[job.id] = max(held_mib + held_mib // 8, self._held_mib.pop(job.id, 0))
        _bound(self._held_mib)

    def outlived(self, job: Job, ran_ms: int) -> None:
        """It is expected to run as long again."""
        self._ran_ms[job.id] = max(ran_ms, 1)
        _bound(self._ran_ms)


def _bound(learned: dict[str, int]) -> None:
    if len(learned) > MOST_LEARNED:
        del learned[next(iter(learned))]
