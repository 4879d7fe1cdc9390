"""Agents ask a real queue through `berth mcp serve`, with no more rights than they are given."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from berth.live.local.mcp import Server
from tests.live.local.world import World, berth


def talk(world: World, *messages: dict[str, Any], changes: bool = False) -> list[dict[str, Any]]:
    lines = "".join(json.dumps({"jsonrpc": "2.0", **message}) + "\n" for message in messages)
    options = ["--allow-changes"] if changes else []
    done = berth(world, "mcp", "serve", *options, stdin=lines)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def call(asked: int, name: str, /, **arguments: object) -> dict[str, Any]:
    return {"id": asked, "method": "tools/call", "params": {"name": name, "arguments": arguments}}


def text(answer: dict[str, Any]) -> Any:
    assert answer["result"]["isError"] is False, answer
    return json.loads(answer["result"]["content"][0]["text"])


def test_an_agent_greets_and_finds_tools_that_only_read(shared: World) -> None:
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    greeted, listed, pinged = talk(
        shared,
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list"},
        {"id": "three", "method": "ping"},
    )
    assert greeted["result"]["protocolVersion"] == "2025-06-18"
    assert greeted["result"]["capabilities"] == {"tools": {}}
    assert [tool["name"] for tool in listed["result"]["tools"]] == ["queue", "status", "why", "job", "wait"]
    assert all(tool["annotations"]["readOnlyHint"] for tool in listed["result"]["tools"])
    assert pinged == {"jsonrpc": "2.0", "id": "three", "result": {}}


def test_an_agent_submits_waits_and_asks_why_where_it_may(shared: World) -> None:
    (made,) = talk(shared, call(1, "submit", command="exit 3", gpus="0", name="agent"), changes=True)
    (job,) = text(made)["ids"]
    (later,) = talk(shared, call(1, "submit", command="true", gpus="9"), changes=True)
    assert later["result"] == {
        "content": [{"type": "text", "text": "--gpus 9, but this machine has 2 GPUs; ask for less"}],
        "isError": True,
    }
    waited, why, queue = talk(shared, call(1, "wait", id=job), call(2, "why", id=job), call(3, "queue"))
    assert [(each["state"], each["exit_code"]) for each in text(waited)["jobs"]] == [("failed", 3)]
    assert text(why)["jobs"][0]["id"] == job
    assert text(queue)["jobs"] == []


def test_an_agent_that_may_only_read_cannot_submit(shared: World) -> None:
    (refused,) = talk(shared, call(7, "submit", command="true"))
    assert refused["error"]["code"] == -32602
    assert "no tool 'submit'; there are queue, status, why, job, wait" in refused["error"]["message"]


def test_what_is_wrong_is_told_in_the_protocols_terms(shared: World) -> None:
    server = Server(None)
    codes = [(server.answer(line) or {})["error"]["code"] for line in ("{", "[]", '{"id": 1, "method": "x"}')]
    assert codes == [-32700, -32600, -32601]
    for arguments, said in (({}, "missing argument 'id'"), ({"id": "1", "x": 1}, "no argument 'x'")):
        answer = server.answer(json.dumps(call(1, "why", **arguments)))
        assert answer is not None
        assert said in answer["result"]["content"][0]["text"]


def test_no_message_however_odd_ends_the_server() -> None:
    server = Server(None)
    for parameters in ([1], "x", 3, {"name": ["why"]}, {"name": "why", "arguments": ["1"]}):
        answer = server.answer(json.dumps({"id": 1, "method": "tools/call", "params": parameters}))
        assert answer is not None
        assert answer["error"]["code"] == -32602
    assert (server.answer("[" * 100_000) or {})["error"]["code"] == -32700
    for name, arguments, said in (
        ("why", {"id": ["1"]}, 'id ["1"]; expected a string'),
        ("wait", {"id": "1", "timeout_s": "soon"}, "timeout_s 'soon'; expected a number of seconds"),
        ("wait", {"id": "1", "timeout_s": -1}, "timeout_s -1; expected a number of seconds"),
    ):
        answer = server.answer(json.dumps(call(1, name, **arguments)))
        assert answer is not None
        assert said in answer["result"]["content"][0]["text"]


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("initialize", ["2025-06-18"]),
        ("tools/call", "queue"),
        ("tools/call", {"name": ["queue"]}),
        ("tools/call", {"name": "queue", "arguments": ["x"]}),
        ("tools/call", {"name": "wait", "arguments": {"id": "1", "timeout_s": "soon"}}),
        ("tools/call", {"name": "wait", "arguments": {"id": "1", "timeout_s": None}}),
    ],
)
def test_a_value_of_another_kind_is_refused_and_the_server_goes_on(method: str, params: object) -> None:
    lines = [json.dumps({"id": at, "method": method, "params": params}) for at in (1, 2)]
    out = io.StringIO()
    Server(None).serve(io.StringIO("\n".join(lines)), out)
    first, second = map(json.loads, out.getvalue().splitlines())
    assert (first["id"], second["id"]) == (1, 2)
    assert "error" in second or second["result"]["isError"]


def test_an_answer_is_ascii_so_that_any_name_can_be_written() -> None:
    out = io.StringIO()
    Server(None).serve(io.StringIO(json.dumps({"id": 1, "method": "손\udcff"})), out)
    assert out.getvalue().isascii()
