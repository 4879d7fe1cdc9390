"""`berth mcp serve`: the queue as tools for agents, by the Model Context Protocol over standard input and output.

A message is one line of JSON-RPC 2.0 (specification 2025-06-18, transport "stdio"). An agent has the rights of the user
that runs this, since the queue asks the kernel who calls. Without `may_change` there is no tool that changes anything.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from io import TextIOWrapper
from typing import Any, TextIO

from berth.errors import BerthError, LiveError
from berth.live.local.places import find_socket
from berth.live.local.protocol import Flags, ask
from berth.live.local.snapshot import jobs_of
from berth.version import __version__

VERSIONS = ("2025-06-18", "2025-03-26", "2024-11-05")
"""Of the protocol, newest first; what is served has not changed between them."""
LONGEST_WAIT_S = 600.0

Message = dict[str, Any]
Submit = Callable[[Flags, list[str]], list[str]]
_TEXT = {"type": "string"}
_ID = {"id": {**_TEXT, "description": "Id of a job, such as 12 or 12_3, or its name."}}
_READING: dict[str, tuple[str, Message, list[str]]] = {
    "queue": ("List waiting and running jobs, with the reason why each waits.", {}, []),
    "status": ("Show the policy, and what each GPU of this machine holds.", {}, []),
    "why": (
        "Explain why a job waits: the policy, the possible GPUs, what blocks them, and since when.",
        _ID,
        ["id"],
    ),
    "job": ("Show all of one job: state, attempts, use, exit code, files of its output.", _ID, ["id"]),
    "wait": (
        "Wait until a job has ended; its state and exit code, or that it has not ended yet.",
        {
            **_ID,
            "timeout_s": {"type": "number", "description": f"At most {LONGEST_WAIT_S:g}; 60 by default."},
        },
        ["id"],
    ),
}
_CHANGING: dict[str, tuple[str, Message, list[str]]] = {
    "submit": (
        "Queue a job that runs as this user, in the current folder; its id.",
        {
            "command": {**_TEXT, "description": "A line for the shell."},
            "gpus": {**_TEXT, "description": "Number of GPUs, or a part of one such as 0.5; 0: none."},
            "mem": {**_TEXT, "description": "GPU memory on each GPU, such as 8G."},
            "time": {**_TEXT, "description": "Time limit, such as 2:00:00 or 30 (minutes)."},
            "name": {**_TEXT, "description": "Name of the job."},
        },
        ["command"],
    ),
    "cancel": ("End a job of this user's.", _ID, ["id"]),
}


class Server:
    """Answers one agent."""

    def __init__(self, submit: Submit | None) -> None:
        """`submit` queues a job and gives its ids; None: nothing may be changed."""
        self._submit = submit
        self._tools = _READING if submit is None else {**_READING, **_CHANGING}

    def serve(self, lines: TextIO, out: TextIO) -> None:
        for line in lines:
            if line.strip() and (answer := self.answer(line)) is not None:
                print(json.dumps(answer), file=out, flush=True)

    def answer(self, line: str) -> Message | None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as error:
            return _error(None, -32700, f"not JSON: {error}")
        if not isinstance(message, dict) or not isinstance(message.get("method"), str):
            return _error(None, -32600, "expected an object with a method")
        if "id" not in message:
            return None
        asked, parameters = message["id"], message.get("params") or {}
        method = message["method"]
        if not isinstance(parameters, dict):
            return _error(asked, -32602, "params: expected an object")
        if method == "initialize":
            version = parameters.get("protocolVersion")
            result: Message = {
                "protocolVersion": version if version in VERSIONS else VERSIONS[0],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "berth", "version": __version__},
            }
        elif method == "ping":
            result = {}
        elif method == "tools/list":
            result = {"tools": [_tool(name, *described) for name, described in self._tools.items()]}
        elif method == "tools/call":
            name, arguments = parameters.get("name"), parameters.get("arguments") or {}
            if not isinstance(name, str) or name not in self._tools:
                return _error(asked, -32602, f"no tool '{name}'; there are {', '.join(self._tools)}")
            if not isinstance(arguments, dict):
                return _error(asked, -32602, f"{name}: expected an object of arguments")
            result = self._called(name, arguments)
        else:
            return _error(asked, -32601, f"no method '{method}'")
        return {"jsonrpc": "2.0", "id": asked, "result": result}

    def _called(self, name: str, arguments: Message) -> Message:
        """What a tool answers; a refusal is told to the agent as the tool's text."""
        _, properties, required = self._tools[name]
        try:
            if unknown := arguments.keys() - properties.keys():
                raise LiveError(f"{name}: no argument '{min(unknown)}'; there are {', '.join(properties)}")
            if missing := [each for each in required if not str(arguments.get(each, "")).strip()]:
                raise LiveError(f"{name}: missing argument '{missing[0]}'")
            for key, value in arguments.items():
                if isinstance(value, bool) or not isinstance(value, str | int | float):
                    raise LiveError(
                        f"{name}: {key} {json.dumps(value)}; expected a {properties[key]['type']}"
                    )
            text = json.dumps(self._answer_of(name, arguments), ensure_ascii=False)
        except BerthError as error:
            return {"content": [{"type": "text", "text": str(error)}], "isError": True}
        return {"content": [{"type": "text", "text": text}], "isError": False}

    def _answer_of(self, name: str, arguments: Message) -> Message:
        job_id = str(arguments.get("id", ""))
        if name == "submit":
            assert self._submit is not None
            flags: Flags = {key: str(value) for key, value in arguments.items() if key != "command"}
            return {"ids": self._submit(flags, ["sh", "-c", str(arguments["command"])])}
        if name == "wait":
            given = arguments.get("timeout_s", 60)
            if isinstance(given, str) or not given >= 0:
                raise LiveError(f"wait: timeout_s {given!r}; expected a number of seconds, at least 0")
            timeout_s = float(min(given, LONGEST_WAIT_S))
            return _ask({"do": "wait", "ids": [job_id], "timeout": timeout_s})
        if name == "cancel":
            return _ask({"do": "cancel", "ids": [job_id], "all": False})
        answer = _ask({"do": name, **({"id": job_id} if job_id else {})})
        if name == "queue":
            return {"jobs": [asdict(job) for job in jobs_of(answer)], "note": answer["note"]}
        return answer


def _tool(name: str, description: str, properties: Message, required: list[str]) -> Message:
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    hints = {"readOnlyHint": name in _READING, "destructiveHint": name == "cancel"}
    return {"name": name, "description": description, "inputSchema": schema, "annotations": hints}


def _error(asked: object, code: int, text: str) -> Message:
    return {"jsonrpc": "2.0", "id": asked, "error": {"code": code, "message": text}}


def _ask(message: Message) -> Message:
    return {key: value for key, value in ask(find_socket(), message).items() if key != "ok"}


def read_and_print(submit: Submit | None) -> None:
    """Serve this process's standard input and output."""
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    Server(submit).serve(sys.stdin, sys.stdout)
