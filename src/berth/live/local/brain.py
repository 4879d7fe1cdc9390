"""The brain: the driver and its policy in a process of their own, which the broker may kill and start again.

It reads lines of JSON from standard input and answers each question. It keeps nothing: a brain that has just started is
told all that waits and runs.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
Message = dict[str, Any]
FORECAST_S = 0.3
"""The time that start intervals may take when a user asks why one job waits."""
SHORT_FORECAST_S = 0.06
"""The same when a user lists the queue, which is shown without them rather than late."""


def main() -> None:
    """Serve one broker, whose process id is the argument, until it closes the line or is killed. If it is killed, the
    brain ends at once, even while it compiles."""
    # The signal comes when the thread that started this process ends: in a broker, the main thread.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        return  # the broker was killed before this process asked for the signal
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # what a policy prints is no answer
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="brain: %(message)s")

    def say(answer: Message) -> None:
        answers.write(json.dumps(answer, separators=(",", ":")) + "\n")

    brain: Brain | None = None
    for line in sys.stdin:
        message = json.loads(line)
        if message["do"] == "begin":
            try:
                brain = _begin(message, say)
            except Exception as error:  # noqa: BLE001  whatever a user's own policy raises
                say({"say": "error", "why": _in_words(error), "fatal": True})
                return
        elif brain is not None:
            brain.answer(message)


def _begin(message: Message, say: Callable[[Message], None]) -> Brain:
    """Make a brain. The steps are told, because a user's own policy has its limit of time for each."""
    say({"say": "progress", "what": "loading"})
    # Of a user's `my.module:thing`.
    sys.path += [path for path in message.get("paths", []) if path not in sys.path]
    import berth.live.driver.driver  # noqa: F401

    say({"say": "progress", "what": "making"})
    brain = Brain(message, say)
    say({"say": "progress", "what": "compiling"})
    began = time.perf_counter()
    if ":" in message["policy"]:
        brain.warm_up("fifo+best-fit")
    say({"say": "progress", "what": "trying"})
    brain.warm_up()
    brain.take(message["events"])
    say({"say": "ready", "policy": message["policy"], "seconds": round(time.perf_counter() - began, 2)})
    return brain


def _in_words(error: Exception) -> str:
    from berth.errors import BerthError, in_one_line

    return str(error) if isinstance(error, BerthError) else in_one_line(error)


class Brain:
    """A driver whose site is the broker."""

    def __init__(self, begin: Mapping[str, Any], say: Callable[[Message], None]) -> None:
        """`begin` names the nodes, the policy and the knowledge. Raises BerthError if there is no such thing. What the
        brain says is said at once: a policy that hangs later takes nothing of it back."""
        from berth.live.driver.driver import Driver, Settings
        from berth.live.local.broker_site import BrokerSite

        self._say = say
        self._site = BrokerSite(
            begin["nodes"],
            say,
            can_suspend=bool(begin.get("can_suspend")),
            learned_starts=str(begin.get("learned_starts", "")),
            samples=str(begin.get("samples", "")),
        )
        # Wait reasons are given on request.
        settings = Settings(str(begin["policy"]), str(begin["knowledge"]), notes=0)
        self.driver = Driver(self._site, settings)
        self._time_limit_s = float(begin.get("decide_s", 5.0))

    def warm_up(self, policy_name: str = "") -> None:
        """Decide once on jobs that are not there, so that what is to be compiled is; by default with its policy."""
        from berth.knowledge import make_knowledge
        from berth.live.driver.warming import warm_up

        nodes = [each.node for each in self._site.nodes()]
        warm_up(policy_name or self.driver.settings.policy, make_knowledge("user"), nodes)

    def answer(self, message: Mapping[str, Any]) -> None:
        if message["do"] == "decide":
            self.take(message["events"])
            self._decide(int(message["now_ms"]), int(message["serial"]))
        elif message["do"] == "why":
            self._forecast(int(message["now_ms"]), FORECAST_S)
            why = self._why(str(message["id"]), int(message["now_ms"]))
            self._say({"say": "why", "serial": message["serial"], **why})
        elif message["do"] == "reasons":
            self._forecast(int(message["now_ms"]), SHORT_FORECAST_S)
            found = {
                job_id: (reason.text, *(reason.starts or (None, None)))
                for job_id, reason in self.driver.reasons(message["ids"]).items()
            }
            self._say({"say": "why", "serial": message["serial"], "found": True, "reasons": found})

    def take(self, events: Iterable[Mapping[str, Any]]) -> None:
        for event in events:
            if event["event"] == "profile":
                self._learn_profile(Path(event["path"]))
            else:
                self._site.take(event)

    def _learn_profile(self, path: Path) -> None:
        from berth.knowledge import LearnsMemory
        from berth.profiles import SHARED, read_profile

        profile = read_profile(path)
        if profile.kind != SHARED and isinstance(self.driver.knowledge, LearnsMemory):
            self.driver.knowledge.recorded(profile)

    def _forecast(self, now_ms: int, seconds: float) -> None:
        limit = time.perf_counter() + seconds
        self.driver.forecast(now_ms, out_of_time=lambda: time.perf_counter() > limit)

    def _decide(self, now_ms: int, serial: int) -> None:
        began = time.perf_counter()
        limit = began + self._time_limit_s
        done = self.driver.step(now_ms, out_of_time=lambda: time.perf_counter() > limit)
        for why in done.refused:
            self._say({"say": "refused", "why": why})
        if done.fault is not None:
            self._say({"say": "error", "why": str(done.fault).removeprefix(f"at {now_ms} ms ")})
        seconds, wake_ms = time.perf_counter() - began, self.driver.next_ms(now_ms)
        self._say({
            "say": "decided", "serial": serial, "seconds": round(seconds, 6), "wake_ms": wake_ms,
            "measured": list(self.driver.measured),
        })  # fmt: skip

    def _why(self, job_id: str, now_ms: int) -> Message:
        """What stands in the way of a waiting job: each GPU with what is free of it."""
        found = self.driver.why(job_id)
        if found is None:
            return {"found": False}
        indices = {gpu: index for index, gpu in enumerate(self._site.gpus)}
        reason, held = found.reason, self.driver.forecasts_held(now_ms)
        from_ms, to_ms = reason.starts or (None, None)
        return {
            "found": True, "policy": self.driver.settings.policy, "gpus": found.job.gpus,
            "ahead": reason.jobs_before, "waiting": found.waiting, "first": found.first,
            "candidates": [
                {
                    "gpu": indices[each.gpu], "free_milli": each.free_milli, "free_mib": each.free_mib,
                    "lacking": list(each.lacking), "left_milli": each.left_milli, "left_mib": each.left_mib,
                }
                for each in found.candidates
            ],
            "machine": found.nodes_lack, "reason": reason.text, "obstacle": reason.obstacle,
            "never": found.never,
            "reserved_ms": reason.reserved_ms, "starts_from_ms": from_ms, "starts_to_ms": to_ms,
            "start_unknown": reason.unknown, "starts_held": held.held, "starts_told": held.of,
            "expected_ms": None if found.run_ms is None else found.run_ms.expected,
            "expected_by": "" if found.run_ms is None else found.run_ms.basis,
            "peak_mib": None if found.peak_mib is None else found.peak_mib.expected,
        }  # fmt: skip


if __name__ == "__main__":
    main()
