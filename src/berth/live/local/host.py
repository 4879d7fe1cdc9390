"""The broker as the host of growth and suspension: what is to become of a job is the book's to keep."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from berth.live.driver.idling import Need
from berth.live.local.book import Book
from berth.live.local.cards import Card
from berth.live.local.entry import WAITING, Entry, application_of
from berth.live.local.messages import asked_mib
from berth.live.local.runner import Runner
from berth.live.local.watching import Watch
from berth.partition.gpus import Gpu


@dataclass(frozen=True, slots=True)
class BookHost:
    """The jobs of one book on these cards."""

    book: Book
    cards: tuple[Card, ...]
    runner: Runner
    watch: Watch
    log: Callable[..., None]
    now_ms: Callable[[], int]
    act: Callable[[], None]
    moved: Callable[[], None]
    fake: bool = False
    fake_card: str = ""

    @property
    def gpus(self) -> list[Gpu]:
        return [card.gpu for card in self.cards]

    def tenants(self) -> Iterable[Entry]:
        return self.book.active.values()

    def tenants_on(self, at: int) -> list[Entry]:
        return [tenant for tenant in self.book.active.values() if at in tenant.slots]

    def partition_of(self, entry: Entry) -> str:
        return self.runner.partition_of(entry)

    def most_mib(self, entry: Entry) -> int:
        return self.book.limits.most_mib(entry.request)

    def others_mib(self, at: int) -> int:
        return self.watch.others_mib(at)

    def uncounted_mib(self, entry: Entry) -> int:
        found = self.watch.uncounted.get(entry.id)
        return 0 if found is None else found.uncounted_mib

    def room_kept(self) -> AbstractContextManager[None]:
        return nullcontext()

    def grown(self, entry: Entry, mem_mib: int) -> None:
        self.book.grown(entry, mem_mib)

    def lend(self, entry: Entry, to: Entry) -> None:
        self.book.lend(entry, to, self.now_ms())

    def let_resume(self, entry: Entry) -> None:
        self.book.let_resume(entry, self.now_ms())

    def moves(self, entry: Entry) -> None:
        self.runner.keep_limit(entry)

    def signal(self, entry: Entry, number: int) -> None:
        self.runner.signal(entry, number)

    def left_mib(self, entry: Entry) -> int | None:
        return self.runner.cgroups.left_mib(self.runner.run_name(entry))

    def left_gpus(self, entry: Entry, parked_mib: int) -> None:
        self.book.left_gpus(entry, parked_mib)

    def stayed(self, entry: Entry) -> None:
        self.book.stayed(entry, self.now_ms())

    def came_back(self, entry: Entry) -> None:
        self.watch.came_back(entry)
        self.book.came_back(entry, self.now_ms())

    def kept_off(self, entry: Entry) -> None:
        self.book.kept_off(entry)

    def lost(self, entry: Entry) -> None:
        self.book.lose(entry, self.now_ms())

    def application_of(self, entry: Entry) -> str:
        return application_of(entry.request, entry.params)

    def is_busy(self, entry: Entry) -> bool:
        return self.watch.is_busy(entry)

    def waiting(self) -> Iterable[Need]:
        for job in self.book.jobs.values():
            request = job.request
            if job.state == WAITING and job.offered and request.gpus:
                limits = self.book.limits
                mem_mib = max(asked_mib(job, limits), job.needs_mib)
                yield Need(request.gpus, request.pins or (), limits.milli_of(request), mem_mib)

    def suspend_idle(self, entry: Entry) -> None:
        self.book.suspend_idle(entry, self.now_ms())

    def away_ms(self, entry: Entry) -> int:
        return self.now_ms() - (entry.suspended_since_ms or 0)
