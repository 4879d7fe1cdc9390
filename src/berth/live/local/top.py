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
from berth.live.driver.words import mib, span
from berth.live.local.entry import HELD, WAITING
from berth.live.local.places import find_socket
from berth.live.local.protocol import Connection
from berth.live.local.tables import HEAD, gpus_text, job_lines, printable

__all__ = ["Top"]

EVERY_S = 1.0
MOST_ROWS = 200
ARMED_S = 5.0
"""For this long the second press of the key that cancels counts."""
COLOURS = {"running": "green", "starting": "green", "waiting": "yellow", "held": "magenta"}


def bar(parts: list[tuple[float, str]], width: int) -> Text:
    """A bar of fractions, each in its colour; what is left is empty."""
    text, left = Text(), width
    for fraction, colour in parts:
        size = min(left, round(fraction * width))
        text.append("█" * size, colour)
        left -= size
    text.append("░" * left, "grey50")
    return text


def bars_of(gpu: dict[str, Any], colours: Sequence[str], width: int) -> Text:
    """How much of a GPU's memory is given away and how much is in use, a line each.

    `width` is the tile's, in characters; 0 if it is not drawn yet.
    """
    total = gpu["mem_mib"]
    tenants = [each["mem_mib"] for each in gpu["tenants"]]
    strangers = sum(each["mem_mib"] for each in (*gpu["strangers"], *gpu["partitions"]))
    given = [(mem_mib / total, colours[at % len(colours)]) for at, mem_mib in enumerate(tenants)]
    of_none = f", {mib(strangers)} of no job" if strangers else ""
    lines = [("given  ", [*given, (strangers / total, "red")], f" {mib(sum(tenants))}{of_none}")]
    if gpu["used_mib"] is not None:
        use = "" if gpu["use_pct"] is None else f", {gpu['use_pct']} %"
        lines.append(("in use ", [(gpu["used_mib"] / total, "yellow")], f" {mib(gpu['used_mib'])}{use}"))
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

    def show(self, gpu: dict[str, Any], now_ms: float) -> None:
        """Draw what the broker says of it."""
        total = gpu["mem_mib"]
        text = Text()
        text.append(f"GPU {gpu['index']} ", "bold")
        text.append(f"{gpu['model']} {mib(total)}", "grey70")
        if gpu["lost"]:
            text.append("  LOST", "bold red")
        elif gpu["drained"]:
            text.append("  drained", "bold yellow")
        colours = ("cyan", "blue", "green", "bright_cyan", "bright_blue")
        text.append_text(bars_of(gpu, colours, self.content_size.width))
        for at, tenant in enumerate(gpu["tenants"]):
            ran = f", {span(now_ms - tenant['since_ms'])}" if tenant["since_ms"] else f", {tenant['state']}"
            text.append(f"\n■ {tenant['id']} ", colours[at % 5])
            text.append(printable(f"{tenant['name'][:16]} ({tenant['user'][:8]})"))
            text.append(f" {tenant['milli'] / 10:g} %, {mib(tenant['mem_mib'])}{ran}", "grey70")
        for each in gpu["strangers"]:
            text.append(f"\n■ process {each['pid']} ", "red")
            text.append(printable(f"{each['command'][:16]} of no job {mib(each['mem_mib'])}"), "grey70")
        for each in gpu["partitions"]:
            text.append(f"\n■ partition {printable(each['name'][:24])} ", "red")
            text.append(f"of no job {mib(each['mem_mib'])}", "grey70")
        if not gpu["tenants"] and not gpu["strangers"] and not gpu["partitions"]:
            text.append("\nfree", "grey50")
        self.update(text)


class Shown(ModalScreen[None]):
    """All of one job."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,enter", "dismiss", "Back")]

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def compose(self) -> ComposeResult:
        """The text and the keys."""
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
        self._rows: list[list[Any]] = []
        self._cancel = ""
        """The job that the last key asked to cancel: the same key again does it."""
        self._asked_s = 0.0

    def compose(self) -> ComposeResult:
        """Head, tiles, queue, keys."""
        yield Label("", id="head")
        yield Horizontal(id="tiles")
        yield Label("", id="note")
        yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        """Look now, and every second."""
        self.query_one(DataTable).add_columns(*HEAD)
        self.look()
        self.set_interval(EVERY_S, self.look)

    def _ask(self, **message: Any) -> dict[str, Any] | None:
        try:
            connection = Connection(find_socket())
            try:
                return connection.ask(message)
            finally:
                connection.close()
        except LiveError as error:
            self._tell(str(error))
            return None

    def _tell(self, text: str) -> None:
        self.query_one("#note", Label).update(_cell(text))

    def look(self) -> None:
        """Ask the broker, and draw."""
        status = self._ask(do="status")
        queue = self._ask(do="queue", limit=MOST_ROWS) if status else None
        if status is None or queue is None:
            self.query_one("#head", Label).update("the queue is down")
            return
        now_ms = time.time() * 1000
        counts = (
            ", ".join(f"{count:,} {state}" for state, count in status["jobs"].items() if count) or "no jobs"
        )
        brain = "" if status["brain"] == "ready" else f"; the policy is {status['brain']}"
        self.query_one("#head", Label).update(f"{status['policy']} decides{brain}   {counts}")
        if queue["note"]:
            self._tell(queue["note"])
        elif self._cancel and time.monotonic() - self._asked_s > ARMED_S:
            self.action_disarm()
        self._draw_tiles(status["gpus"], now_ms)
        self._draw_queue(queue["rows"], now_ms)

    def _draw_tiles(self, gpus: list[dict[str, Any]], now_ms: float) -> None:
        place = self.query_one("#tiles", Horizontal)
        place.set_class(len(gpus) < 2, "one")
        tiles = list(self.query(Tile))
        if len(tiles) != len(gpus):
            place.remove_children()
            tiles = [Tile() for _ in gpus]
            place.mount(*tiles)
        for tile, gpu in zip(tiles, gpus, strict=True):
            tile.show(gpu, now_ms)

    def _draw_queue(self, rows: list[list[Any]], now_ms: float) -> None:
        table = self.query_one(DataTable)
        chosen = self._chosen()
        order = {"running": 0, "starting": 0}
        self._rows = sorted(rows, key=lambda row: order.get(row[3], 1))
        table.clear()
        for row in self._rows:
            (job_id, user, name, state, gpus, milli, memory, _submit_ms, start_ms, *_rest) = row
            slots, reason, ready_ms = row[11], row[13], row[14]
            began_ms = ready_ms if state in (WAITING, HELD) else start_ms
            where = "GPU " + ",".join(map(str, slots)) if slots else reason
            table.add_row(
                *(job_id, _cell(user), _cell(name[:24]), Text(state, COLOURS.get(state, ""))),
                *(gpus_text(gpus, milli), mib(memory) if memory else "–"),
                *("–" if began_ms is None else span(now_ms - began_ms), _cell(where[:80])),
            )
        ids = [row[0] for row in self._rows]
        if chosen in ids:
            table.move_cursor(row=ids.index(chosen))

    def _chosen(self) -> str:
        at = self.query_one(DataTable).cursor_row
        return str(self._rows[at][0]) if 0 <= at < len(self._rows) else ""

    def action_show(self) -> None:
        """Show all of the chosen job."""
        if (chosen := self._chosen()) and (answer := self._ask(do="job", id=chosen)):
            self.push_screen(Shown(job_lines(answer["jobs"][0])))

    def on_data_table_row_selected(self) -> None:
        """Enter in the table."""
        self.action_show()

    def action_why(self) -> None:
        """Say why the chosen job waits."""
        from berth.live.local.tables import why_lines

        if (chosen := self._chosen()) and (answer := self._ask(do="why", id=chosen)):
            self.push_screen(Shown(why_lines(answer["jobs"][0])))

    def action_hold(self) -> None:
        """Hold the chosen job, or release it."""
        if chosen := self._chosen():
            state = next(row[3] for row in self._rows if row[0] == chosen)
            what = "release" if state == "held" else "hold"
            if self._ask(do=what, ids=[chosen]):
                self._tell(f"job {chosen}: {'released' if what == 'release' else 'held'}")
            self.look()

    def action_disarm(self) -> None:
        """Take back the first press of the key that cancels."""
        self._cancel = ""
        self._tell("")

    def action_cancel(self) -> None:
        """Cancel the chosen job, at the second time."""
        if not (chosen := self._chosen()):
            return
        if self._cancel != chosen or time.monotonic() - self._asked_s > ARMED_S:
            self._cancel, self._asked_s = chosen, time.monotonic()
            self._tell(f"press c again to cancel job {chosen}")
            return
        self._cancel = ""
        if self._ask(do="cancel", ids=[chosen]):
            self._tell(f"job {chosen}: cancelled")
        self.look()
