"""The console in a real Chromium: its first picture, how fast an event is shown, and what 100 open pages cost.

    python bench/console.py [--pages 100] [--seconds 30] [--every 2] [--only large]
    python bench/console.py --flood 10000 [--seconds 10]

The console is a process of its own over a queue made of values: as large as the demo's, and with 10,000 GPUs and 50,000
waiting jobs. Its first picture is there when the tiles or the map are drawn; an event is shown when the page's first
sentence counts it. An open page is a connection for events that does with them what the page's script does; something
changes every `--every` seconds. (Asked: 1 s and 2 s, 1 s, and under 20 % of a core and 400 MiB.)

`--flood N` lets something change N times a second instead, on the queue of the demo's size, while one page listens: how
many changes the console took in, how many events the page was told, and how long after the last change it had all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
from playwright.sync_api import Browser, sync_playwright

from harness import environment_of, save

OWN = Path(__file__).resolve().parents[1] / "src"
SIZES = {"demo": (8, 5), "large": (10_000, 50_000)}
DRAWN = """() => document.getElementById('tiles').getAttribute('aria-busy') === 'false'
    || !document.getElementById('map').hidden"""
CHANGED = "before => document.getElementById('answer').textContent !== before"
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def serve(gpus: int, waiting: int, state: Path) -> None:
    """Be the console, print its address, and let one job more wait for each line of standard input."""
    import uvicorn

    sys.path.insert(0, str(Path(__file__).parents[1]))  # the queue made of values is the tests' own
    from tests.console.values import ValuesSource, look_of

    from berth.console.identity import Doorkeeper
    from berth.console.roles import Role
    from berth.console.server import create_app
    from berth.console.settings import Listen, Settings

    settings = Settings(state=state, listen=Listen(port=0))
    source = ValuesSource(look_of(gpus=gpus, waiting=waiting))
    token = Doorkeeper(settings).tokens.add("bench", Role.VIEWER)
    config = uvicorn.Config(create_app(settings, [source]), log_level="warning", ws="none", port=0)
    bound = config.bind_socket()
    bound.listen()
    print(f"http://127.0.0.1:{bound.getsockname()[1]}/login?token={token}", flush=True)

    def change() -> None:
        for _ in sys.stdin:
            look = source.value
            held = look.gpus[0]
            flipped = replace(held, use_pct=None if held.use_pct else 50.0)
            source.value = replace(look, gpus=(flipped, *look.gpus[1:]), waiting=look.waiting + 1)

    threading.Thread(target=change, daemon=True).start()
    uvicorn.Server(config).run(sockets=[bound])


@dataclass
class Console:
    """The process of a console."""

    process: subprocess.Popen[str]
    login: str

    @property
    def address(self) -> str:
        return self.login.partition("/login")[0]

    def change(self) -> None:
        """One job more waits, and one GPU is used otherwise."""
        assert self.process.stdin is not None
        print(flush=True, file=self.process.stdin)

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * TICK_S

    def rss_mib(self) -> float:
        return (
            int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
            * os.sysconf("SC_PAGE_SIZE")
            / 2**20
        )


@contextmanager
def console(gpus: int, waiting: int) -> Iterator[Console]:
    """A console of this size, until it is no longer needed."""
    with tempfile.TemporaryDirectory() as state:
        process = subprocess.Popen(
            [sys.executable, __file__, "--serve", f"{gpus},{waiting},{state}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment_of(OWN),
        )  # fmt: skip
        assert process.stdout is not None
        try:
            yield Console(process, process.stdout.readline().strip())
        finally:
            process.kill()
            process.wait()


def pictures(browser: Browser, served: Console, runs: int) -> dict[str, float]:
    """Median seconds to the first picture in a fresh window, and from a change to its being shown."""
    first, shown = [], []
    for _ in range(runs):
        context = browser.new_context()
        context.request.get(served.login, max_redirects=0)
        page = context.new_page()
        begin = time.perf_counter()
        page.goto(f"{served.address}/now", wait_until="commit")
        page.wait_for_function(DRAWN, polling="raf")
        first.append(time.perf_counter() - begin)
        page.wait_for_timeout(1500)  # the page listens
        before = page.locator("#answer").inner_text()
        begin = time.perf_counter()
        served.change()
        page.wait_for_function(
            "before => document.getElementById('answer').textContent !== before", arg=before, polling=20
        )
        shown.append(time.perf_counter() - begin)
        context.close()
    return {"first_picture_s": statistics.median(first), "event_shown_s": statistics.median(shown)}


async def open_pages(served: Console, pages: int, seconds: float, every_s: float) -> dict[str, float]:
    """Measure the console's share of a core and its memory while this many pages are open."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
        cookie_jar=aiohttp.CookieJar(unsafe=True),  # of an address without a name
        raise_for_status=True,
    ) as session:
        await session.get(served.login)
        heard = 0

        async def page() -> None:
            nonlocal heard
            await (await session.get(f"{served.address}/now")).read()
            boot, version = await load()
            async with session.get(f"{served.address}/events") as stream:
                async for line in stream.content:
                    if not line.startswith(b"data:"):
                        continue
                    told = json.loads(line[5:])
                    heard += 1
                    if (told["boot"], told["version"]) == (boot, version):
                        continue
                    if told["gpus"] is None or (told["boot"], told["version"]) != (boot, version + 1):
                        boot, version = await load()
                    else:
                        version = told["version"]

        async def load() -> tuple[object, int]:
            told = await (await session.get(f"{served.address}/api/v1/gpus")).json()
            return told["boot"], told["version"]

        tasks = []
        for _ in range(pages):  # as people open them, not all in one moment
            tasks.append(asyncio.create_task(page()))
            await asyncio.sleep(0.1)
        await asyncio.sleep(3)
        before_s, begin, heard = served.cpu_s(), time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            served.change()
            await asyncio.sleep(every_s)
        share = (served.cpu_s() - before_s) / (time.perf_counter() - begin)
        result = {"core_pct": 100 * share, "rss_mib": served.rss_mib(), "events_a_page": heard / pages}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return result


async def flood(served: Console, rate: int, seconds: float) -> dict[str, float]:
    """Let something change this often a second while one page listens."""
    assert served.process.stdin is not None
    pipe = served.process.stdin
    async with aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=None),
        cookie_jar=aiohttp.CookieJar(unsafe=True),
        raise_for_status=True,
    ) as session:
        await session.get(served.login)
        waiting: list[tuple[float, int]] = []

        def hear(line: bytes) -> None:
            if line.startswith(b"data:"):
                waiting.append((time.perf_counter(), json.loads(line[5:])["counts"]["waiting"]))

        async def listen() -> None:
            async with session.get(f"{served.address}/events") as stream:
                async for line in stream.content:
                    hear(line)

        page = asyncio.create_task(listen())
        while not waiting:
            await asyncio.sleep(0.05)
        start, sent, told, before_s, begin = (
            waiting[-1][1],
            0,
            len(waiting),
            served.cpu_s(),
            time.perf_counter(),
        )

        def send(lines: int) -> None:
            pipe.write("\n" * lines)
            pipe.flush()

        while (passed := time.perf_counter() - begin) < seconds:
            due = round(rate * passed) - sent
            await asyncio.to_thread(send, due)
            sent += due
            await asyncio.sleep(0.01)
        last = time.perf_counter()
        share = (served.cpu_s() - before_s) / (last - begin)
        while waiting[-1][1] < start + sent:
            await asyncio.sleep(0.01)
        page.cancel()
        await asyncio.gather(page, return_exceptions=True)
        return {
            "changes_a_second": sent / (last - begin),
            "events_a_second": (len(waiting) - told) / (waiting[-1][0] - begin),
            "all_told_after_s": waiting[-1][0] - last,
            "core_pct": 100 * share,
            "rss_mib": served.rss_mib(),
        }


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pages", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--every", type=float, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", choices=SIZES, action="append")
    parser.add_argument("--flood", type=int, metavar="N", help="changes a second")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        gpus, waiting, state = chosen.serve.split(",")
        serve(int(gpus), int(waiting), Path(state))
        return
    results: dict[str, dict[str, float]] = {}
    if chosen.flood:
        with console(*SIZES["demo"]) as served:
            results["flood"] = asyncio.run(flood(served, chosen.flood, chosen.seconds))
        print(", ".join(f"{key} {value:,.2f}" for key, value in results["flood"].items()))
        print("load of the machine:", *(f"{each:.1f}" for each in os.getloadavg()))
        save("console_flood", results)
        return
    for name in chosen.only or SIZES:
        gpus, waiting = SIZES[name]
        with console(gpus, waiting) as served:
            with sync_playwright() as playwright:
                program = shutil.which("chromium") or shutil.which("chromium-browser")
                browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
                results[name] = pictures(browser, served, chosen.runs)
                browser.close()
            results[name] |= asyncio.run(open_pages(served, chosen.pages, chosen.seconds, chosen.every))
        told = ", ".join(f"{key} {value:.2f}" for key, value in results[name].items())
        print(f"{name}: {gpus:,} GPUs, {waiting:,} waiting: {told}")
    print("load of the machine:", *(f"{each:.1f}" for each in os.getloadavg()))
    save("console", results)


if __name__ == "__main__":
    main()
