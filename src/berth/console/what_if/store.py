"""Questions on disk, a folder each, which outlive the console.

    what-if/ID/question.json   who asked what and when; written once
    what-if/ID/state.json      where it is
    what-if/ID/answer.json     what was found; next to it pictures.json
    what-if/ID/log             what the worker wrote on standard error

An id is random: it is an address that can be sent to a colleague.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from berth.console.what_if.question import Question
from berth.errors import BerthError, LiveError, SettingError
from berth.files import write_whole

ID = re.compile(r"[A-Za-z0-9_-]{12}")
MOST_ANSWERS = 100
"""Questions that one user may keep."""
QUESTION, STATE = "question.json", "state.json"


class Place(StrEnum):
    """Where a question is on its way."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def over(self) -> bool:
        """Whether nothing more becomes of it."""
        return self in (Place.DONE, Place.FAILED, Place.STOPPED)


@dataclass(frozen=True, slots=True)
class State:
    """What changes of a question."""

    place: Place = Place.WAITING
    detail: str = ""
    """Why it failed, in words."""
    started_s: float | None = None
    ended_s: float | None = None
    attempts: int = 0


_STATE: Final = TypeAdapter(State)


@dataclass(frozen=True, slots=True)
class Entry:
    """A question with all that is known of it but its answer."""

    id: str
    user: str
    asked_s: float
    question: Question
    state: State = State()
    done: float = 0.0
    """How far the replay is, from 0 to 1."""


class Store:
    """All questions of a console; the console alone writes them, so that they are read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._entries: dict[str, Entry] = {}
        self._unwritten: set[str] = set()
        for each in sorted(folder.iterdir()) if folder.is_dir() else ():
            if ID.fullmatch(each.name) and (entry := _read(each)) is not None:
                self._entries[entry.id] = entry

    def all(self) -> list[Entry]:
        """Every question, the latest first."""
        return sorted(self._entries.values(), key=lambda entry: (-entry.asked_s, entry.id))

    def get(self, question_id: str) -> Entry | None:
        """The question of this id, or None."""
        return self._entries.get(question_id)

    def place_of(self, question_id: str) -> Path:
        """The folder of a question."""
        return self.folder / question_id

    def add(self, user: str, question: Question, now_s: float) -> Entry:
        """Keep a question; SettingError if the user keeps too many, LiveError if it cannot be written."""
        if sum(entry.user == user for entry in self._entries.values()) >= MOST_ANSWERS:
            raise SettingError(f"you keep {MOST_ANSWERS} questions; delete some that you no longer need")
        entry = Entry(secrets.token_urlsafe(9), user, now_s, question)
        folder = self.place_of(entry.id)
        try:
            folder.mkdir(mode=0o700, parents=True)
            content = {"user": user, "asked_s": now_s, **asdict(question)}
            write_whole(folder / QUESTION, json.dumps(content), durable=True)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise LiveError(f"the question cannot be kept in {folder}: {error.strerror or error}") from error
        self._entries[entry.id] = entry
        return entry

    def change(self, question_id: str, state: State) -> None:
        """Note where a question is; what cannot be written now is written by `write_again`."""
        self._entries[question_id] = replace(self._entries[question_id], state=state, done=0.0)
        self._unwritten.add(question_id)
        self.write_again()

    def advanced(self, question_id: str, done: float) -> None:
        """Note how far a replay is; a console that restarts begins it anew, so it is not written."""
        entry = self._entries[question_id]
        self._entries[question_id] = replace(entry, done=max(entry.done, min(1.0, done)))

    def write_again(self) -> None:
        """Write the states that are not on disk; a full disk is not the end of the console."""
        for question_id in list(self._unwritten):
            try:
                state = asdict(self._entries[question_id].state)
                write_whole(self.place_of(question_id) / STATE, json.dumps(state))
            except OSError:
                continue
            self._unwritten.discard(question_id)

    def remove(self, question_id: str) -> None:
        """Forget a question with its answer."""
        self._unwritten.discard(question_id)
        del self._entries[question_id]
        shutil.rmtree(self.place_of(question_id), ignore_errors=True)


def read_question(folder: Path) -> Question:
    """The question in a folder. Raises SettingError if it is none."""
    return _question(folder)[2]


def _read(folder: Path) -> Entry | None:
    """What is in a folder; None of one that was cut off while it was made, or that another version wrote."""
    try:
        user, asked_s, question = _question(folder)
    except BerthError:
        return None
    try:
        state = _STATE.validate_json((folder / STATE).read_bytes())
    except (OSError, ValueError):
        state = State()
    return Entry(folder.name, user, asked_s, question, state)


def _question(folder: Path) -> tuple[str, float, Question]:
    try:
        content: dict[str, Any] = json.loads((folder / QUESTION).read_text(encoding="utf-8"))
        user, asked_s = str(content.pop("user")), float(content.pop("asked_s"))
        return user, asked_s, Question(**{**content, "policies": tuple(content["policies"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SettingError(f"{folder / QUESTION} is not a question: {error}") from error
