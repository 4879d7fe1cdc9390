"""The history that a console shows: one open database, and what each viewer is shown."""

from __future__ import annotations

from fastapi import HTTPException, Request

from berth.console.roles import Role, Viewer
from berth.errors import HistoryError
from berth.history.store.cached_history import CachedHistory
from berth.history.store.reader import history_is_there
from berth.statistics.attempts import Picked


def history_of(request: Request) -> CachedHistory:
    """The history of this console, or 404 with how to make one; for FastAPI's Depends."""
    if words := missing(request):
        raise HTTPException(404, words)
    history: CachedHistory = request.app.state.history
    return history


def missing(request: Request) -> str:
    """Why there is no history to show, and how to make one; empty if there is one."""
    history: CachedHistory | None = request.app.state.history
    if history is None:
        return "the console was started without a history; start it with `berth console --history DIR`"
    try:
        history_is_there(history.folder)
    except HistoryError as error:
        return str(error)
    return ""


def has_pseudonyms(history: CachedHistory) -> bool:
    """Whether the history holds pseudonyms instead of names."""
    return bool(history.reader.index().key_mark)


def picked_for(
    viewer: Viewer, history: CachedHistory, order: str, ranges: tuple[tuple[str, float, float], ...] = ()
) -> Picked:
    """Attempts as this viewer may see them: of other people's neither commands nor files nor what was measured."""
    own = own_of(viewer, history)
    return Picked(order, ranges) if own is None else Picked(order, ranges, sees_all=False, user=own)


def own_of(viewer: Viewer, history: CachedHistory) -> str | None:
    """User whose attempts this viewer may see in full: None for all users, empty for no user."""
    if viewer.role is Role.OPERATOR:
        return None
    return viewer.user if viewer.role.includes(Role.USER) and not has_pseudonyms(history) else ""
