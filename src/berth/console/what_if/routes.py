"""What if: its pages and its part of the API."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, HTTPException, Query, Request, Response
from pydantic import BaseModel, Field

from berth.console.formats import decimal
from berth.console.identity import User, Who
from berth.console.pages import page
from berth.console.roles import Role, Viewer
from berth.console.what_if.answer import ANSWERS, Answer, SizesAnswer
from berth.console.what_if.question import INTERFERENCES, Question, QuestionBody, asked, command
from berth.console.what_if.queue import Queue, starter
from berth.console.what_if.store import Entry, Place
from berth.console.what_if.worker import ANSWER, PICTURES
from berth.errors import BerthError, HistoryError, LiveError, SettingError
from berth.experiments.recorded_run import CLUSTER
from berth.history.store.reader import history_is_there
from berth.model import Node
from berth.policies import ORDERS, PLACEMENTS, describe, policies_found
from berth.statistics import Unit, readable_unit
from berth.traces import read_nodes

FOLDER = "what-if"
COMMON = ("fifo", "sjf", "easy+fifo", "fair-share", "fgd", "greedy")
"""What most people ask about first."""
COLUMNS = (
    ("Mean wait", "wait_mean_s"),
    ("Median wait", "wait_median_s"),
    ("90th percentile of waits", "wait_p90_s"),
    ("99th percentile of waits", "wait_p99_s"),
    ("Mean completion", "completion_mean_s"),
    ("Makespan", "makespan_s"),
)
PAGE = 50
"""Questions on a page of the list."""
_making = threading.Lock()


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Go on with what an earlier console left, and stop the workers at the end."""
    if (app.state.settings.state / FOLDER).is_dir() and app.state.settings.history is not None:
        queue_of(app)
    yield
    if (queue := getattr(app.state, "what_if", None)) is not None:
        queue.end()


router = APIRouter(lifespan=_lifespan)
PageNumber = Annotated[
    int, Query(alias="page", ge=1, le=1_000_000, description="From 1; after the last one, the last one.")
]
PageSize = Annotated[int, Query(ge=1, le=1000, description="Questions a page.")]


class QuestionAnswer(BaseModel):
    """A question, and its answer when there is one."""

    id: str
    user: str
    asked_s: float = Field(description="When, in seconds since 1970.")
    place: Place
    detail: str = Field(description="Why it failed.")
    done: float = Field(description="How far the replay is, from 0 to 1.")
    before: int = Field(description="How many questions are answered before it.")
    started_s: float | None
    ended_s: float | None
    question: Question
    command: str = Field(description="The command that does the same.")
    answer: Answer | SizesAnswer | None


class Questions(BaseModel):
    """One page of the questions."""

    total: int
    page: int
    size: int
    places: dict[Place, int] = Field(description="How many of all questions are where.")
    questions: list[QuestionAnswer]


class Shown(BaseModel):
    """A figure of Plotly."""

    name: str
    title: str
    figure: dict[str, Any]


def queue_of(app: FastAPI) -> Queue:
    """The queue of an application, made when it is first needed."""
    with _making:
        queue: Queue | None = getattr(app.state, "what_if", None)
        if queue is None:
            settings = app.state.settings
            queue = Queue(
                settings.state / FOLDER,
                starter(_history(app)),
                settings.what_if_processes,
                settings.what_if_mem_mib,
            )
            queue.begin()
            app.state.what_if = queue
        return queue


@router.get("/api/v1/what-if")
def questions(request: Request, who: Who, number: PageNumber = 1, size: PageSize = 50) -> Questions:
    """A page of the questions, the latest first, without their answers."""
    return _listed(request, queue_of(request.app), number, size)


@router.post("/api/v1/what-if", status_code=201)
def ask(request: Request, who: User, body: QuestionBody) -> QuestionAnswer:
    """Ask a question; it is answered when it is its turn."""
    history = _history(request.app)
    history_is_there(history)
    queue = queue_of(request.app)
    question = asked(time.time_ns() // 1_000_000, body)
    _check_machine(question, history)
    return _question_answer(request, queue, queue.ask(who.user, question))


@router.get("/api/v1/what-if/{question_id}")
def one(request: Request, who: Who, question_id: str) -> QuestionAnswer:
    """A question with its answer."""
    queue = queue_of(request.app)
    return _question_answer(request, queue, _entry(queue, question_id))


@router.get("/api/v1/what-if/{question_id}/pictures")
def pictures(request: Request, who: Who, question_id: str) -> list[Shown]:
    """The pictures of an answer; none before it is there."""
    queue = queue_of(request.app)
    path = queue.place_of(_entry(queue, question_id).id) / PICTURES
    if not path.exists():
        return []
    pictures = json.loads(path.read_text(encoding="utf-8"))
    return [Shown(**{**each, "figure": json.loads(each["figure"])}) for each in pictures]


@router.post("/api/v1/what-if/{question_id}/stop")
def stop(request: Request, who: User, question_id: str) -> QuestionAnswer:
    """Stop a question of one's own that waits or is being answered."""
    queue = queue_of(request.app)
    entry = _own(queue, question_id, who)
    queue.stop(entry.id)
    return _question_answer(request, queue, _entry(queue, question_id))


@router.post("/api/v1/what-if/{question_id}/again")
def again(request: Request, who: User, question_id: str) -> QuestionAnswer:
    """Ask once more what failed or was stopped."""
    queue = queue_of(request.app)
    entry = _own(queue, question_id, who)
    _check_machine(entry.question, _history(request.app))
    queue.again(entry.id)
    return _question_answer(request, queue, _entry(queue, question_id))


@router.delete("/api/v1/what-if/{question_id}", status_code=204)
def remove(request: Request, who: User, question_id: str) -> Response:
    """Delete a question of one's own with its answer."""
    queue = queue_of(request.app)
    queue.remove(_own(queue, question_id, who).id)
    return Response(status_code=204)


@router.get("/what-if", include_in_schema=False)
def list_page(request: Request, who: Who, number: PageNumber = 1) -> Response:
    """The form, and a page of the questions of all."""
    problem = ""
    found = Questions(total=0, page=1, size=PAGE, places={}, questions=[])
    nodes: tuple[Node, ...] = ()
    try:
        history = _history(request.app)
        history_is_there(history)
        if (history / CLUSTER).exists():
            nodes = read_nodes(history / CLUSTER)
        queue = queue_of(request.app)
        found = _listed(request, queue, number, PAGE)
    except BerthError as error:
        problem = str(error)
    return page(
        request,
        "what_if.html",
        who,
        problem=problem,
        found=found,
        pages=max(1, -(-found.total // PAGE)),
        nodes=len(nodes),
        gpus=sum(node.gpus for node in nodes),
        may_ask=who.role.includes(Role.USER),
        common=[(name, [describe(part) for part in name.split("+")]) for name in COMMON],
        groups=[
            (title, [(name, [describe(name)]) for name in group if name not in COMMON])
            for title, group in (
                ("Orders", ORDERS),
                ("Placements", PLACEMENTS),
                ("Policies", policies_found()),
            )
        ],
        interferences=[name for name in INTERFERENCES if name != "none"],
        moment=_moment,
    )


@router.get("/what-if/{question_id}", include_in_schema=False)
def one_page(request: Request, who: Who, question_id: str) -> Response:
    """A question with its progress, or its answer."""
    queue = queue_of(request.app)
    entry = _question_answer(request, queue, _entry(queue, question_id))
    return page(
        request,
        "what_if_one.html",
        who,
        entry=entry,
        mine=who.owns(entry.user),
        columns=_columns(entry.answer) if isinstance(entry.answer, Answer) else [],
        quantity=_quantity,
        moment=_moment,
    )


def _columns(answer: Answer) -> list[tuple[str, str, list[str]]]:
    """Each column's name, unit and cells, in a unit that makes its values easy to read."""
    found = []
    for name, field in COLUMNS:
        values = [getattr(row, field) for row in answer.rows]
        factor, unit = readable_unit(Unit.SECONDS, [value for value in values if value is not None])
        cells = ["–" if value is None else decimal(value * factor) for value in values]
        found.append((name, unit, cells))
    held = [row.gpu_allocation_pct for row in answer.rows]
    found.append(("GPU allocation", "%", ["–" if value is None else f"{value:.1f}" for value in held]))
    found.append(("Jobs not finished", "", [f"{row.unserved:,}" for row in answer.rows]))
    return found


def _quantity(seconds: float, *others: float) -> tuple[str, str]:
    """A time as its number and unit. The unit suits the others too, apart from those at least a hundred times as
    long."""
    near = [each for each in others if each < 100 * seconds]
    factor, unit = readable_unit(Unit.SECONDS, [seconds, *near])
    return decimal(seconds * factor), unit


def _moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"


def _listed(request: Request, queue: Queue, number: int, size: int) -> Questions:
    """The page of questions that was asked for, or the last one if there are fewer."""
    turns, entries = queue.turns(), queue.all()
    number = min(number, max(1, -(-len(entries) // size)))
    shown = entries[(number - 1) * size : number * size]
    return Questions(
        total=len(entries),
        page=number,
        size=size,
        places=Counter(entry.state.place for entry in entries),
        questions=[_answer_of(request, entry, turns.get(entry.id, 0), None) for entry in shown],
    )


def _question_answer(request: Request, queue: Queue, entry: Entry) -> QuestionAnswer:
    """One question, with its answer if there is one."""
    done = entry.state.place is Place.DONE
    answer = _answer(queue.place_of(entry.id)) if done else None
    return _answer_of(request, entry, queue.turns().get(entry.id, 0), answer)


def _answer_of(
    request: Request, entry: Entry, before: int, answer: Answer | SizesAnswer | None
) -> QuestionAnswer:
    state = entry.state
    return QuestionAnswer(
        id=entry.id,
        user=entry.user,
        asked_s=entry.asked_s,
        place=state.place,
        detail=state.detail,
        done=1.0 if state.place is Place.DONE else entry.done,
        before=before,
        started_s=state.started_s,
        ended_s=state.ended_s,
        question=entry.question,
        command=command(entry.question, _history(request.app)),
        answer=answer,
    )


def _answer(folder: Path) -> Answer | SizesAnswer:
    path = folder / ANSWER
    try:
        return ANSWERS.validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise HistoryError(
            f"{path} is not an answer: {error}; delete the question and ask it again"
        ) from error


def _entry(queue: Queue, question_id: str) -> Entry:
    entry = queue.get(question_id)
    if entry is None:
        raise HTTPException(404, f"no question '{question_id[:40]}'; it may have been deleted")
    return entry


def _own(queue: Queue, question_id: str, who: Viewer) -> Entry:
    entry = _entry(queue, question_id)
    if not who.owns(entry.user):
        raise HTTPException(
            403, f"this question is {entry.user}'s; only {entry.user} and operators may change it"
        )
    return entry


def _check_machine(question: Question, history: Path) -> None:
    """Raise SettingError if neither the question nor the history says what the jobs ran on."""
    if not question.cluster and not (history / CLUSTER).exists():
        raise SettingError(
            "the history was imported, and does not say which GPUs its jobs ran on; give the machine (`cluster`) as"
            " nodes and GPUs of each, such as 4x8:A100-80"
        )


def _history(app: FastAPI) -> Path:
    history: Path | None = app.state.settings.history
    if history is None:
        raise LiveError(
            "this console reads no history, so there is nothing to replay; start it with --history DIR"
        )
    return history
