"""Is what clients of `windtunnel serve listen` see what `windtunnel serve` says of the same requests?

    python validation/serving/listen.py --streams 200 --law 90 --leak 300

Law: so many streams in a closed loop; the server records requests as they come; `windtunnel serve --workload` plays the
record in virtual time; mean TTFT and TPOT of the clients beside the simulation's. Leak: as many streams again, of which
one in five hangs up half way and one in fifty sends what is no request; resident memory and blocks of the server, over
time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODEL = ["llama-3.1-70b", "--cluster", "a100-sxm-80gb:4", "--tp", "4"]
PROMPT, OUTPUT = 500, 150  # tokens
RAMP_S = 10.0  # over which the streams begin


class Counted:
    """What clients saw."""

    def __init__(self) -> None:
        self.ttft: list[float] = []
        self.tpot: list[float] = []
        self.tokens = self.hung_up = self.refused = self.broken = 0


Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def one(line: Line, seen: Counted, draw: random.Random, untidy: bool) -> bool:
    """One request; counts what comes. True: the connection can be used again."""
    reader, writer = line
    output = draw.randint(OUTPUT // 2, OUTPUT)
    body = json.dumps(
        {
            "model": MODEL[0],
            "prompt": [draw.randrange(100_000) for _ in range(PROMPT)],
            "max_tokens": output,
            "stream": True,
        }
    )
    bad = untidy and draw.random() < 0.02
    if bad:
        body = body[: len(body) // 2]
    leave = output // 2 if untidy and draw.random() < 0.2 else output + 1
    try:
        host = "{}:{}".format(*writer.get_extra_info("peername"))
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write((head + body).encode())
        sent = time.perf_counter()
        first = last = 0.0
        tokens = 0
        status = (await reader.readline()).split()
        if bad:
            assert status[1] == b"400", status
            await reader.readuntil(b'"error"')
            seen.refused += 1
            return False
        assert status[1] == b"200", status
        ended = False
        while not ended and (text := await reader.read(1 << 16)):
            more = text.count(b"data: {")
            if more:
                last = time.perf_counter()
                first = first or last
                tokens += more
            if tokens >= leave:
                seen.hung_up += 1
                return False
            ended = text.endswith(b"0\r\n\r\n")  # the last chunk
        if tokens != output:
            seen.broken += 1
            return False
        seen.ttft.append(first - sent)
        seen.tpot.append((last - first) / (tokens - 1))
        return True
    finally:
        seen.tokens += tokens if not bad else 0


async def closed_loop(port: int, streams: int, seconds: float, untidy: bool, watch: object) -> Counted:
    """`streams` slots, each sending again when its request has ended."""
    seen = Counted()
    end = time.perf_counter() + seconds

    async def slot(number: int) -> None:
        draw = random.Random(number)
        await asyncio.sleep(RAMP_S * number / streams)
        line: Line | None = None
        while time.perf_counter() < end:
            line = line or await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
            if not await one(line, seen, draw, untidy):
                line[1].close()
                line = None
        if line is not None:
            line[1].close()

    async def watcher() -> None:
        while time.perf_counter() < end:
            watch()  # type: ignore[operator]
            await asyncio.sleep(15)

    await asyncio.gather(watcher(), *(slot(number) for number in range(streams)))
    return seen


async def metrics(port: int) -> dict[str, float]:
    """The numbers of /metrics, summed over engines."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
    text = (await reader.read()).decode()
    writer.close()
    found: dict[str, float] = {}
    for name, value in re.findall(r"^(\w+:\w+)\{[^}]*\} (\S+)", text, re.M):
        if not name.endswith("_bucket"):
            found[name] = found.get(name, 0.0) + float(value)
    return found


def resident_mib(pid: int) -> float:
    """Resident memory of a process."""
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1024  # type: ignore[index]


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--law", type=float, default=90.0, help="seconds")
    parser.add_argument("--leak", type=float, default=300.0, help="seconds; 0: leave it out")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "asked.csv"
        serve = [sys.executable, "-m", "windtunnel", "serve"]
        verb, ask = [*serve, "listen", *MODEL], [*serve, *MODEL]
        server = subprocess.Popen([*verb, "127.0.0.1:0", "--record", str(record)], stderr=subprocess.PIPE, text=True)
        try:
            assert server.stderr is not None
            while (match := re.search(r"http://127\.0\.0\.1:(\d+)", line := server.stderr.readline())) is None:
                assert line, "the server ended"
            port = int(match[1])
            asyncio.run(metrics(port))  # it answers
            began, cpu = time.perf_counter(), cpu_s(server.pid)
            seen = asyncio.run(closed_loop(port, asked.streams, asked.law, False, lambda: None))
            share = (cpu_s(server.pid) - cpu) / (time.perf_counter() - began)
            replay = json.loads(
                subprocess.run([*ask, "--workload", str(record), "--json"], check=True, capture_output=True).stdout
            )
            lag = asyncio.run(metrics(port))
            print(
                f"law: {asked.streams} streams, {len(seen.ttft)} requests, {seen.broken} broken, {seen.tokens} tokens;"
            )
            print(f"     server {share:.0%} of a core, lag of a token {1e3 * mean_lag(lag):.2f} ms on average")
            own = lag["vllm:time_to_first_token_seconds_sum"] / lag["vllm:time_to_first_token_seconds_count"]
            print(f"     the server's own mean TTFT {1e3 * own:.2f} ms")
            for name, values in (("ttft_s", seen.ttft), ("tpot_s", seen.tpot)):
                clients, simulated = sum(values) / len(values), replay[name]["mean"]
                print(
                    f"     {name}: clients {1e3 * clients:.2f} ms, simulated {1e3 * simulated:.2f} ms,"
                    f" {clients / simulated - 1:+.2%}"
                )
            if asked.leak:
                rows: list[float] = []
                seen = asyncio.run(
                    closed_loop(port, asked.streams, asked.leak, True, lambda: rows.append(resident_mib(server.pid)))
                )
                time.sleep(1.0)
                end = asyncio.run(metrics(port))
                print(
                    f"leak: {asked.leak:g} s, {len(seen.ttft)} whole, {seen.hung_up} hung up, {seen.refused} malformed,"
                )
                print(f"      {seen.broken} broken; resident MiB every 15 s: {' '.join(f'{row:.0f}' for row in rows)}")
                left = {name: end[name] for name in ("vllm:num_requests_running", "vllm:num_requests_waiting")}
                print(f"      left at the end: {left}, KV in use {end['vllm:kv_cache_usage_perc']:g}")
        finally:
            server.terminate()
            server.wait(30)


def mean_lag(found: dict[str, float]) -> float:
    """Seconds."""
    return found["windtunnel:lag_seconds_sum"] / max(1.0, found["windtunnel:lag_seconds_count"])


if __name__ == "__main__":
    main()
