"""`berth top`: a tile a GPU with its tenants and strangers, and the queue below; keys to cancel, hold and show."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Label, Static

from berth.errors import LiveError
from berth.live.driver.snapshot import GOING, Gpu, LiveJob
from berth.live.driver.words import mib, span
from berth.live.local.places import find_socket
from berth.live.local.protocol import ask
from berth.live.local.snapshot import snapshot_of
from berth.live.local.tables import (
    HEAD,
    job_lines,
    memory_text,
    policy_state,
    printable,
    queue_cells,
    why_lines,
)

EVERY_S = 1.0
MOST_ROWS = 200
ARMED_S = 5.0
"""For this long the second press of the key that cancels counts."""
COLOURS = {
    "running": "green",
    "starting": "green",
    "waiting": "yellow",
    "held": "magenta",
    "suspended": "blue",
}


def bar(parts: list[tuple[float, str]], width: int) -> Text:
    """A bar of fractions, each in its colour; what is left is empty."""
    text, left = Text(), width
    for fraction, colour in parts:
        size = min(left, round(fraction * width))
        text.append("█" * size, colour)
        left -= size
    text.append("░" * left, "grey50")
    return text


def bars_of(gpu: Gpu, colours: Sequence[str], width: int) -> Text:
    """How much of a GPU's memory is given away and how much is in use, a line each.

    `width` is the tile's, in characters; 0 if it is not drawn yet.
    """
    total = gpu.mem_mib
    tenants = [each.mem_mib for each in gpu.tenants]
    strangers = sum(each.mem_mib for each in gpu.strangers)
    given = [(mem_mib / total, colours[at % len(colours)]) for at, mem_mib in enumerate(tenants)]
    of_none = f", {mib(strangers)} of no job" if strangers else ""
    lines = [("given  ", [*given, (strangers / total, "red")], f" {mib(sum(tenants))}{of_none}")]
    if gpu.used_mib is not None:
        use = "" if gpu.use_pct is None else f", {gpu.use_pct} %"
        lines.append(("in use ", [(gpu.used_mib / total, "yellow")], f" {mib(gpu.used_mib)}{use}"))
    room = (width or 40) - max(len(name) + len(amounts) for name, _, amounts in lines)
    text = Text()
    for name, parts, amounts in lines:
        text.append(f"\n{name}").append_text(bar(parts, max(6, min(30, room)))).append(amounts)
    return text


def _cell(text: str) -> Text:
    """What a user wrote, as it is: brackets are no markup."""
    return Text(printable(text))


class Tile(Static):
    """One GPU."""

    def show(self, gpu: Gpu, now_ms: float) -> None:
        text = Text()
        text.append(f"GPU {gpu.index} ", "bold")
        text.append(f"{gpu.model} {mib(gpu.mem_mib)}", "grey70")
        if gpu.health:
            text.append("  LOST", "bold red")
        elif gpu.drained:
            text.append("  drained", "bold yellow")
        colours = ("cyan", "blue", "green", "bright_cyan", "bright_blue")
        text.append_text(bars_of(gpu, colours, self.content_size.width))
        for at, tenant in enumerate(gpu.tenants):
            ran = span(now_ms - tenant.since_ms) if tenant.since_ms else tenant.state
            text.append(f"\n■ {tenant.job} ", colours[at % 5])
            text.append(printable(f"{tenant.name[:16]} ({tenant.user[:8]})"))
            text.append(
                f" {tenant.milli / 10:g} %, {memory_text(tenant)}, {ran}{', measured' if tenant.measured else ''}",
                "grey70",
            )
        for each in gpu.strangers:
            text.append(f"\n■ {printable(each.name[:34])} ", "red")
            text.append(printable(f"{each.command[:16]} of no job".lstrip()), "grey70")
            text.append(f" {mib(each.mem_mib)}", "grey70")
        if not gpu.tenants and not gpu.strangers:
            text.append("\nfree", "grey50")
        self.update(text)


class Shown(ModalScreen[None]):
    """All of one job."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,enter", "dismiss", "Back")]

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="shown"):
            yield Static(Text("\n".join(self._lines)))
        yield Footer()


class Top(App[None]):
    """The queue, live."""

    CSS = """
    #tiles { height: auto; max-height: 50%; layout: grid; grid-size: 2; grid-gutter: 0 1; grid-rows: auto;
             overflow-y: auto; }
    #tiles.one { grid-size: 1; }
    Tile { border: round $primary; height: auto; padding: 0 1; }
    #head { height: auto; padding: 0 1; background: $panel; }
    #note { height: auto; padding: 0 1; color: $warning; }
    DataTable { height: 1fr; }
    #shown { border: round $primary; margin: 2 4; padding: 1 2; background: $surface; }
    Shown { align: center middle; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "quit", "Quit"),
        ("enter,s", "show", "Show"),
        ("w", "why", "Why it waits"),
        ("h", "hold", "Hold or release"),
        ("c", "cancel", "Cancel"),
        ("escape", "disarm", "Back"),
    ]
    TITLE = "berth top"
    ENABLE_COMMAND_PALETTE = False

    def __init__(self) -> None:
        super().__init__()
        self._jobs: list[LiveJob] = []
        self._cancel = ""
        """The job that the last key asked to cancel: the same key again does it."""
        self._armed_s = 0.0

    def compose(self) -> ComposeResult:
        yield Label("", id="head")
        yield Horizontal(id="tiles")
        yield Label("", id="note")
        yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(DataTable).add_columns(*HEAD)
        self.look()
        self.set_interval(EVERY_S, self.look)

    def _ask(self, **message: Any) -> dict[str, Any] | None:
        try:
            return ask(find_socket(), message)
        except LiveError as error:
            self._show_note(str(error))
            return None

    def _show_note(self, text: str) -> None:
        self.query_one("#note", Label).update(_cell(text))

    def look(self) -> None:
        status = self._ask(do="status")
        queue = self._ask(do="queue", limit=MOST_ROWS) if status else None
        if status is None or queue is None:
            self.query_one("#head", Label).update("the queue is down")
            return
        snapshot = snapshot_of(status, queue)
        counts = (
            ", ".join(f"{count:,} {state}" for state, count in status["jobs"].items() if count) or "no jobs"
        )
        doing = policy_state(status["brain"])
        shown = "decides" if status["brain"] == "ready" else f"does not decide yet: {doing}"
        self.query_one("#head", Label).update(f"{status['policy']} {shown}   {counts}")
        if queue["note"]:
            self._show_note(queue["note"])
        elif self._cancel and time.monotonic() - self._armed_s > ARMED_S:
            self.action_disarm()
        self._draw_tiles(snapshot.gpus, snapshot.at_ms)
        self._draw_queue(snapshot.jobs, snapshot.at_ms)

    def _draw_tiles(self, gpus: Sequence[Gpu], now_ms: float) -> None:
        place = self.query_one("#tiles", Horizontal)
        place.set_class(len(gpus) < 2, "one")
        tiles = list(self.query(Tile))
        if len(tiles) != len(gpus):
            place.remove_children()
            tiles = [Tile() for _ in gpus]
            place.mount(*tiles)
        for tile, gpu in zip(tiles, gpus, strict=True):
            tile.show(gpu, now_ms)

    def _draw_queue(self, jobs: Sequence[LiveJob], now_ms: float) -> None:
        table = self.query_one(DataTable)
        chosen = self._chosen()
        self._jobs = sorted(jobs, key=lambda job: job.state not in GOING)
        table.clear()
        for job in self._jobs:
            cells = [_cell(cell) for cell in queue_cells(job, now_ms)]
            cells[3].stylize(COLOURS.get(job.state, ""))
            table.add_row(*cells)
        ids = [job.id for job in self._jobs]
        if chosen in ids:
            table.move_cursor(row=ids.index(chosen))

    def _chosen(self) -> str:
        at = self.query_one(DataTable).cursor_row
        return self._jobs[at].id if 0 <= at < len(self._jobs) else ""

    def action_show(self) -> None:
        if (chosen := self._chosen()) and (answer := self._ask(do="job", id=chosen)):
            self.push_screen(Shown(job_lines(answer["jobs"][0])))

    def on_data_table_row_selected(self) -> None:
        self.action_show()

    def action_why(self) -> None:
        if (chosen := self._chosen()) and (answer := self._ask(do="why", id=chosen)):
            self.push_screen(Shown(why_lines(answer["jobs"][0])))

    def action_hold(self) -> None:
        if chosen := self._chosen():
            state = next(job.state for job in self._jobs if job.id == chosen)
            what = "release" if state == "held" else "hold"
            if self._ask(do=what, ids=[chosen]):
                self._show_note(f"job {chosen}: {'released' if what == 'release' else 'held'}")
            self.look()

    def action_disarm(self) -> None:
        self._cancel = ""
        self._show_note("")

    def action_cancel(self) -> None:
        if not (chosen := self._chosen()):
            return
        if self._cancel != chosen or time.monotonic() - self._armed_s > ARMED_S:
            self._cancel, self._armed_s = chosen, time.monotonic()
            self._show_note(f"press c again to cancel job {chosen}")
            return
        self._cancel = ""
        if self._ask(do="cancel", ids=[chosen]):
            self._show_note(f"job {chosen}: cancelled")
        self.look()
