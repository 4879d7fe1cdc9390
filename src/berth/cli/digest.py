"""`berth digest`: a week in a page of text, to be sent by whatever sends mail."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from berth.cli.history_folder import HistoryFolder
from berth.counts import counted
from berth.errors import SettingError
from berth.history.values.durations import day_text, moment_ms

DAY_MS = 86_400_000


def digest(
    user: Annotated[
        str,
        typer.Option(metavar="NAME", help="Only this user; by default all users, for operators."),
    ] = "",
    days: Annotated[int, typer.Option(min=1, metavar="N", help="Number of days.")] = 7,
    end: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="DATE",
            help="End of the period, a day that is not included; by default today in UTC.",
        ),
    ] = "",
    history: HistoryFolder = Path("history"),
) -> None:
    """Summarise a period: GPUs that could be returned, changes, idle GPUs by user, failures, and causes of waits.

    It sends nothing itself: `berth digest | mail -s GPUs ops@example.org`.
    """
    from berth.experiments.returnable import size_sentences
    from berth.history.store.folder import open_history
    from berth.history.store.reader import unknown_values
    from berth.report.digest import digest_text
    from berth.statistics.tables import Period, Tables

    end_ms = moment_ms(end, "--to") if end else int(datetime.now(UTC).timestamp()) // 86_400 * DAY_MS
    begin_ms = end_ms - days * DAY_MS
    only = (("user", user),) if user else ()
    store = open_history(history, must_exist=True)
    first = () if user else size_sentences(store, begin_ms, end_ms)
    with store.database() as database:
        for unknown in unknown_values(database, {"user": user}):
            more = f" and {unknown.more:,} more" if unknown.more else ""
            raise SettingError(
                f"{history} has no user '{user}'; it has {', '.join(unknown.known) or 'none'}{more}"
            )
        now = Tables(database, Period(begin_ms, end_ms, only))
        text = digest_text(
            now,
            Tables(database, Period(begin_ms - days * DAY_MS, begin_ms, only)),
            title=f"GPUs of {user}" if user else "GPUs",
            period=f"Attempts that ended from {day_text(begin_ms)} to {day_text(end_ms - DAY_MS)}, "
            f"against the {counted(days, 'day')} before",
            one_user=bool(user),
            first=first,
        )
        last_ms = None if now.totals().jobs else Tables(database, Period(only=only)).totals().last_ms
    print(text, end="")
    if last_ms is not None:
        print(f"The last one ended on {day_text(last_ms)}: add --to {day_text(last_ms + DAY_MS)}.")
