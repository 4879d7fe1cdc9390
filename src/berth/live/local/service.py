"""What the broker answers to clients: each request by its name, for the user that the kernel names."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import socket
import struct
from collections.abc import Callable, Iterable
from dataclasses import replace

from berth.errors import BerthError, LiveError, StoreError
from berth.live.driver.snapshot import GOING
from berth.live.local.broker import Broker
from berth.live.local.entry import RUNNING, Entry
from berth.live.local.listing import Listing
from berth.live.local.protocol import Caller, Message, decoded, encoded
from berth.live.local.request import Request, edited, request_of, tasks_of
from berth.live.local.store import Statement, key_of_text, of_entry, of_request, of_text
from berth.tenants import SUSPENDED, SUSPENDING

GONE_S = 2.0
"""How often a wait looks whether its client is still there."""
LONGEST_WAIT_S = 1e9
MOVING_S = 0.02
"""How often it is looked whether jobs have left their GPUs."""
MOST_WHYS = 5
MOST_SHARED = 2000
_TEXTS = {"env": "environment", "script": "script"}


class Service:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.listing = Listing(broker)
        self._users: dict[int, str] = {}
        self._edits = asyncio.Lock()
        self._requests: dict[Request, tuple[int, Request]] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until the client goes away."""
        caller = _caller(writer.get_extra_info("socket"), reader.at_eof)
        try:
            while line := await reader.readline():
                writer.write(encoded(await self._answer(line, caller)))
                await writer.drain()
        except (ConnectionError, ValueError):
            pass
        finally:
            writer.close()

    async def _answer(self, line: bytes, caller: Caller) -> Message:
        try:
            message = decoded(line)
            name = message.get("do")
            handler = getattr(self, f"do_{name}", None) or getattr(self.listing, f"do_{name}", None)
            if name in ("cancel", "hold", "release"):
                answer = await self._each(message, caller, getattr(self._broker.book, name))
            elif handler is not None:
                answer = await handler(message, caller)
            else:
                raise LiveError(
                    f"no request '{name}'; the client and the broker may be of different versions"
                )
        except BerthError as error:
            return {"ok": False, "error": str(error)}
        except Exception as error:  # noqa: BLE001  whatever a message makes go wrong, its client is told
            self._broker.log("bad-request", why=repr(error))
            return {
                "ok": False,
                "error": f"a request that cannot be understood: {error or type(error).__name__}",
            }
        return {"ok": True, **answer}

    async def do_wait(self, message: Message, caller: Caller) -> Message:
        broker = self._broker
        if message.get("all"):
            entries = [entry for entry in broker.book.jobs.values() if entry.uid == caller.uid]
        else:
            entries = [entry for each in message["ids"] for entry in self.listing.find(str(each))]
        ends = {broker.on_end(entry.id): entry.id for entry in entries if entry.id in broker.book.jobs}
        late: set[asyncio.Future[None]] = set(ends)
        try:
            loop = asyncio.get_running_loop()
            timeout = message.get("timeout")
            left_s = LONGEST_WAIT_S if timeout is None else float(timeout)
            until_s = loop.time() + left_s
            while late and left_s > 0 and not caller.gone():
                _, late = await asyncio.wait(late, timeout=min(left_s, GONE_S))
                left_s = until_s - loop.time()
        finally:
            for end in late:
                broker.wait_no_longer(ends[end], end)
        if late:
            return {"late": len(late), "jobs": []}
        await broker.commits.settled()
        answers = [self.listing.find(entry.id)[0] for entry in entries]
        return {
            "late": 0,
            "jobs": [
                {"id": job.id, "state": job.state, "exit_code": job.exit_code, "reason": job.reason}
                for job in answers
            ],
        }

    # What users do

    async def do_submit(self, message: Message, caller: Caller) -> Message:
        """Queue jobs: all of the message, or none."""
        broker = self._broker
        book, now_ms = broker.book, broker.now_ms()
        if os.geteuid() != 0 and caller.uid != os.geteuid():
            raise LiveError(
                f"this queue belongs to {self._user(os.geteuid())} and starts jobs only as that user; start one of"
                " your own with `berth up`, or ask root to start one for the machine"
            )
        if broker.link.deciding == "" and broker.stopped.is_set():
            raise LiveError("the queue is going down; submit again when it is up")
        statements: list[Statement] = []
        made: list[Entry] = []
        texts: dict[str, str] = {}
        written: set[int] = set()
        number = book.numbering
        try:
            for count, each in enumerate(message["jobs"], 1):
                try:
                    request = self._requested(each, message, now_ms, texts, statements)
                    key, request = self._shared(request)
                    made += book.draft(
                        request,
                        tasks_of(each["flags"]),
                        key=key,
                        uid=caller.uid,
                        user=self._user(caller.uid),
                        now_ms=now_ms,
                    )
                except LiveError as error:
                    if len(message["jobs"]) == 1 and not message.get("numbered"):
                        raise
                    raise LiveError(f"job {count} of the message: {error}") from error
                if key not in written:
                    written.add(key)
                    statements.append(of_request(key, request))
        except LiveError:
            book.number_from(number)  # no other submission came in between
            raise
        statements += [of_entry(entry) for entry in made]
        drafted = book.numbering
        try:
            broker.reserve_numbers()
            await broker.commits.ask(statements)
        except LiveError:
            if book.numbering == drafted:
                book.number_from(number)
            raise
        book.add(made, broker.now_ms())
        broker.counters.submitted += len(made)
        broker.act()
        return {
            "ids": list(dict.fromkeys(entry.number for entry in made)),  # an array's once
            "count": len(made),
            "note": self.listing.note(),
            "hints": self._hints(made, message["jobs"]),
        }

    def _hints(self, made: Iterable[Entry], jobs: Iterable[Message]) -> list[str]:
        """What a user may have meant otherwise: a profile that is not there, a parameter that nothing names."""
        from berth.files import plain_name

        hints: dict[str, None] = {}
        profiles = os.path.join(self._broker.places.history, "profiles")
        for profile in {entry.request.profile for entry in made} - {""}:
            if not os.path.exists(os.path.join(profiles, f"{plain_name(profile)}.profile.csv")):
                hints[f"there is no profile '{profile}' yet; it will be recorded from this job's runs"] = None
        for each in jobs:
            if each["flags"].get("param") and not each.get("script"):
                for name in (text.partition("=")[0] for text in each["flags"]["param"]):
                    if not any("{" + name + "}" in word for word in each["argv"]):
                        hints[f"no {{{name}}} in the command: the job finds it in BERTH_PARAM_{name}"] = None
        return list(hints)

    def _shared(self, request: Request) -> tuple[int, Request]:
        """The key and the object of an equal request of late, so that 10,000 jobs alike have one in memory."""
        found = self._requests.pop(request, None) or (self._broker.next_request_key(), request)
        self._requests[found[1]] = found
        if len(self._requests) > MOST_SHARED:
            del self._requests[next(iter(self._requests))]
        return found

    def _requested(
        self, each: Message, message: Message, now_ms: int, texts: dict[str, str], statements: list[Statement]
    ) -> Request:
        """The request of one job, with its environment and script among the texts."""
        keys = {"env": "", "script": ""}
        for name in ("env", "script"):
            value = each.get(name, message.get(name))
            text = value if isinstance(value, str) else json.dumps(value) if value else ""
            if text:
                if text not in texts:
                    try:
                        texts[text] = key_of_text(text)
                    except UnicodeEncodeError as error:
                        raise LiveError(
                            f"the {_TEXTS[name]} contains characters that cannot be stored (at {error.start}); write"
                            " it in UTF-8"
                        ) from error
                    statements.append(of_text(text))
                keys[name] = texts[text]
        request = request_of(each["flags"], argv=each["argv"], cwd=message["cwd"], now_ms=now_ms)
        return replace(request, env=keys["env"], script=keys["script"])

    async def do_suspend(self, message: Message, caller: Caller) -> Message:
        """Have running jobs leave their GPUs until they are resumed; the answer comes when they have."""
        broker = self._broker

        def suspend(entry: Entry, now_ms: int) -> None:
            if entry.state == RUNNING and not entry.suspension and (why := broker.suspending.why_not(entry)):
                raise LiveError(f"job {entry.id} cannot be suspended: {why}; it runs on")
            broker.book.suspend(entry, now_ms)
            if entry.suspension == SUSPENDED:  # while it was idle, so that its program went on
                broker.suspending.stand_still(entry)

        answer = await self._each(message, caller, suspend)
        jobs, refused = [], answer["refused"]
        for answered in answer["jobs"]:
            entry = broker.book.jobs.get(answered["id"])
            while entry is not None and entry.suspension == SUSPENDING and not caller.gone():
                await asyncio.sleep(MOVING_S)
                entry = broker.book.jobs.get(answered["id"])
            state = entry.shown_state if entry is not None else "ended"
            if state == RUNNING:
                why = broker.suspending.refusals.get(answered["id"], "the driver gave no answer")
                why = f"job {answered['id']} could not be suspended: {why}; it runs on"
                refused.append({"id": answered["id"], "state": state, "why": why})
            else:
                jobs.append({**answered, "state": state})
        if refused and not jobs:
            raise LiveError(refused[0]["why"])
        return {**answer, "jobs": jobs, "refused": refused}

    async def do_resume(self, message: Message, caller: Caller) -> Message:
        answer = await self._each(message, caller, self._broker.book.let_resume)
        return {**answer, "jobs": [{**job, "stopping": "resume"} for job in answer["jobs"]]}

    async def do_requeue(self, message: Message, caller: Caller) -> Message:
        book = self._broker.book

        def requeue(entry: Entry, now_ms: int) -> None:
            if entry.id in book.jobs:
                book.requeue(entry, now_ms)
            else:
                book.revive(entry, now_ms)

        return await self._each(message, caller, requeue)

    async def do_edit(self, message: Message, caller: Caller) -> Message:
        """Change what jobs ask for; tasks of an array that asked for the same share what they ask for now."""
        async with self._edits:  # two at once would each give the job a request that the other does not know
            return await self._edit(message, caller)

    async def _edit(self, message: Message, caller: Caller) -> Message:
        broker = self._broker
        new: dict[int, tuple[int, Request]] = {}
        for entry in self._controlled(message, caller):
            if entry.request_key not in new:
                request = edited(entry.request, message["flags"], broker.now_ms())
                broker.book.limits.check(request)
                new[entry.request_key] = broker.next_request_key(), request
        await broker.commits.ask([of_request(*each) for each in new.values()])

        def edit(entry: Entry, now_ms: int) -> None:
            key, request = new[entry.request_key]
            broker.book.edit(entry, request, key, now_ms)

        return await self._each(message, caller, edit)

    async def _each(self, message: Message, caller: Caller, change: Callable[[Entry, int], None]) -> Message:
        """Change each job that can be, and say which cannot and why; LiveError where none can."""
        now_ms = self._broker.now_ms()
        changed: list[Entry] = []
        entries, refused = self._some_controlled(message, caller)
        for entry in entries:
            before = entry.shown_state
            try:
                change(entry, now_ms)
            except LiveError as error:
                refused.append({"id": entry.id, "state": before, "why": str(error)})
            else:
                changed.append(entry)
        if refused and not changed:
            whys = [*dict.fromkeys(str(each["why"]) for each in refused)]
            more = [f"and {len(whys) - MOST_WHYS} more"] if len(whys) > MOST_WHYS else []
            raise LiveError("; ".join(whys[:MOST_WHYS] + more))
        self._broker.act()
        note = ""
        try:
            await self._broker.commits.flushed()
        except StoreError as error:
            note = f"done, but not written yet: {error}"
        jobs = [
            {
                "id": entry.id,
                "state": entry.shown_state,
                "stopping": entry.stop if entry.state in GOING else "",
            }
            for entry in changed
        ]
        return {"jobs": jobs, "refused": refused, "note": note}

    def _some_controlled(self, message: Message, caller: Caller) -> tuple[list[Entry], list[Message]]:
        """The jobs that a message names, and those of its ids that name none."""
        if message.get("all"):
            return self._controlled(message, caller), []
        known: list[str] = []
        refused: list[Message] = []
        for each in map(str, message["ids"]):
            try:
                self.listing.find(each)
                known.append(each)
            except LiveError as error:
                refused.append({"id": each, "state": "", "why": str(error)})
        return self._controlled({**message, "ids": known}, caller), refused

    def _controlled(self, message: Message, caller: Caller) -> list[Entry]:
        """The jobs that a message names; LiveError where one is another user's."""
        jobs = self._broker.book.jobs
        if message.get("all"):
            return [entry for entry in jobs.values() if entry.uid == caller.uid]
        named = (entry for each in message["ids"] for entry in self.listing.find(str(each)))
        found = list(
            {entry.id: entry for entry in named}.values()
        )  # a job that is named twice is changed once
        for entry in found:
            if caller.uid not in (0, entry.uid, os.geteuid()):
                allowed = " or ".join(dict.fromkeys((entry.user, "root")))
                raise LiveError(f"job {entry.id} belongs to {entry.user}; only {allowed} may change it")
        return found

    # The queue itself

    async def do_policy(self, message: Message, caller: Caller) -> Message:
        broker = self._broker
        name, knowledge = message.get("name"), message.get("knowledge")
        if name or knowledge:
            self._operator(caller)
            await broker.change_policy(name or "", knowledge or "", str(message.get("cwd", "/")))
        return {
            "policy": broker.link.policy,
            "deciding": broker.link.deciding,
            "knowledge": broker.deciding.chosen.knowledge,
            "brain": broker.link.state,
            "trouble": broker.link.trouble,
        }

    async def do_drain(self, message: Message, caller: Caller) -> Message:
        """Start nothing new on GPUs, or with `on` false, start there again; without `gpus`, say which are drained."""
        broker = self._broker
        if message.get("gpus"):
            self._operator(caller)
            there = {card.index for card in broker.cards.cards}
            named = {int(each) for each in message["gpus"]}
            if unknown := named - there:
                known = ", ".join(map(str, sorted(there))) or "none"
                raise LiveError(f"there is no GPU {min(unknown)}; this machine's GPUs: {known}")
            await broker.drain(broker.drained | named if message.get("on", True) else broker.drained - named)
        busy = {index for entry in broker.book.active.values() for index in entry.slots}
        return {"drained": sorted(broker.drained), "busy": sorted(broker.drained & busy)}

    async def do_down(self, message: Message, caller: Caller) -> Message:
        self._operator(caller)
        broker = self._broker
        running = list(broker.book.active.values())
        if message.get("cancel"):
            broker.link.close()  # nothing new starts
            running = list(broker.book.active.values())
            ends = [broker.on_end(entry.id) for entry in running]
            for entry in running:
                broker.book.cancel(entry, broker.now_ms())
            broker.act()
            if ends:
                await asyncio.wait(ends)
            running = []
        asyncio.get_running_loop().call_later(0.05, broker.stopped.set)
        return {
            "running": len(running),
            "waiting": len(broker.book.jobs) - len(running),
            "pid": os.getpid(),
        }

    def _operator(self, caller: Caller) -> None:
        if caller.uid not in (0, os.geteuid()):
            owner = self._user(os.geteuid())
            allowed = "root" if owner == "root" else f"root and {owner}, whose queue this is,"
            raise LiveError(f"only {allowed} may do that")

    def _user(self, uid: int) -> str:
        if uid not in self._users:
            try:
                self._users[uid] = pwd.getpwuid(uid).pw_name
            except KeyError:
                self._users[uid] = str(uid)
        return self._users[uid]


def _caller(connection: socket.socket, gone: Callable[[], bool]) -> Caller:
    answers = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", answers)
    return Caller(uid, gone)
