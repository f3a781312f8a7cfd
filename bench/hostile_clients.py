"""Hostile load, the clients: good, slow, greedy, hostile and vanishing ones, over plain sockets.

Each is a coroutine that makes one visit; a loop repeats it. What came back is counted in a `Tally`.
"""

import asyncio
import json
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from bench.hostile_servers import Target

from coseek.core.files import Json

ANSWER_S = 120.0
"""A request that is not answered by then hangs."""
PATIENCE_S = 120.0
"""A connection hangs that is neither answered nor closed for so long: one of several requests may be answered after
the other, each within this time."""
CUT_S = 60.0
"""By then, one who reads nothing of an answer has to be cut."""
_GONE = (ConnectionError, asyncio.IncompleteReadError, BrokenPipeError)


@dataclass
class Tally:
    """What the clients met."""

    statuses: dict[str, Counter[str]] = field(default_factory=dict)
    """Role → statuses of answers, and other ends, with their counts."""
    faults: Counter[str] = field(default_factory=Counter)
    """`5xx`, `unanswered`, `wrong` and `hung`, which must be 0."""
    examples: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """Of good clients' requests."""
    stopped: float = float("inf")
    """When the server was told to stop."""

    def note(self, role: str, what: str) -> None:
        self.statuses.setdefault(role, Counter())[what] += 1

    def fault(self, kind: str, example: str) -> None:
        self.faults[kind] += 1
        if len(self.examples) < 20:
            self.examples.append(f"{kind}: {example}"[:300])


@dataclass
class Answer:
    """An HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Client:
    """One client: its server, its role, its random numbers, and where it counts."""

    role: str
    host: str
    port: int
    target: Target
    token: str
    tally: Tally
    rng: random.Random
    heard: Callable[[], None] = lambda: None
    """Called with each answer, and with each piece of one: the visit under way does not hang."""

    def request(self, body: bytes, token: str | None = None, more: str = "", length: str | None = None) -> bytes:
        length = f"Content-Length: {len(body)}\r\n" if length is None else length
        return self.head(length + more, token) + body

    def head(self, lines: str, token: str | None = None) -> bytes:
        owned = f"Authorization: Bearer {self.token if token is None else token}\r\n" if self.target.token else ""
        first = f"POST {self.target.path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n"
        return f"{first}Content-Type: application/json\r\n{owned}{self.target.headers}{lines}\r\n".encode()

    @asynccontextmanager
    async def connected(self, buffer: int = 0) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A connection; `buffer` makes the system's buffer of unread answers so small."""
        made = socket.socket()
        made.setblocking(False)
        if buffer:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        try:
            await asyncio.get_running_loop().sock_connect(made, (self.host, self.port))
            reader, writer = await asyncio.open_connection(sock=made, limit=buffer or 2**16)
        except BaseException:
            made.close()
            raise
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    def answered(self, answer: Answer) -> None:
        self.heard()
        self.tally.note(self.role, str(answer.status))
        deliberate = answer.status == 503 and "retry-after" in answer.headers
        if answer.status >= 500 and not deliberate:
            self.tally.fault("5xx", f"{self.role}: {answer.status} {answer.body[:200]!r}")


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """Read one answer. Raises `IncompleteReadError` where the connection ends before it."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
    status = int(head[0].split()[1])
    if status == 100:
        return await read_answer(reader)
    if headers.get("transfer-encoding") != "chunked":
        return Answer(status, headers, await reader.readexactly(int(headers.get("content-length", "0"))))
    body = bytearray()
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)
    return Answer(status, headers, bytes(body))


async def full_visit(client: Client, data: bytes, what: str) -> Answer | None:
    """Send a whole, acceptable request; it must be answered."""
    sent = time.monotonic()
    try:
        async with asyncio.timeout(ANSWER_S), client.connected() as (reader, writer):
            writer.write(data)
            answer = await read_answer(reader)
    except (*_GONE, TimeoutError) as error:
        if client.tally.stopped > sent:
            client.tally.fault("unanswered", f"{client.role}, {what}: {error!r}")
        return None
    client.answered(answer)
    return answer


# --- good


async def good(client: Client) -> None:
    """Ask some questions over one connection; each answer is compared with the library's."""
    sent = float("inf")
    try:
        async with client.connected() as (reader, writer):
            for _ in range(client.rng.randint(1, 20)):
                row, wanted = client.rng.choice(client.target.asked)
                streamed = client.target.streams and client.rng.random() < 0.5
                body = json.dumps({**row, "stream": True} if streamed else row).encode()
                sent = time.monotonic()
                writer.write(client.request(body))
                async with asyncio.timeout(ANSWER_S):
                    answer = await read_answer(reader)
                client.answered(answer)
                if answer.status == 503:
                    await asyncio.sleep(min(5.0, float(answer.headers.get("retry-after", "1"))))
                    break
                client.tally.seconds.append(time.monotonic() - sent)
                if (found := _found(client, answer, streamed)) != json.loads(json.dumps(wanted)):
                    client.tally.fault("wrong", f"{answer.status} {body[:100]!r}: {str(found)[:100]}")
                if client.tally.stopped < time.monotonic() or answer.headers.get("connection") == "close":
                    break
    except (*_GONE, TimeoutError) as error:
        if client.tally.stopped > sent:
            client.tally.fault("unanswered", f"good, after {time.monotonic() - sent:.1f} s: {error!r}")
        else:
            await asyncio.sleep(0.2)


def _found(client: Client, answer: Answer, streamed: bool = False) -> Json:
    """What is compared; the body of an answer that cannot be read as one."""
    try:
        return _heard(answer.body) if streamed else client.target.read(json.loads(answer.body))
    except (KeyError, ValueError):
        return answer.body[:200].decode(errors="replace")


def _heard(stream: bytes) -> Json:
    """Reasoning and content of a streamed answer."""
    events = [line[6:] for line in stream.decode().split("\n") if line.startswith("data: {")]
    choices = [choice for event in events for choice in json.loads(event).get("choices", ())]
    said = ["".join(choice["delta"].get(name, "") for choice in choices) for name in ("reasoning_content", "content")]
    return [*said]


# --- slow


async def slow(client: Client) -> None:
    """Send or read slowly: within the limits (then it must be answered), or beyond them (then it must be cut)."""
    kind = client.rng.choice([_slow_but_allowed, _endless_head, _endless_body, _slow_reader, _never_reader])
    await _until_cut(client, kind)


async def _until_cut(client: Client, visit: Callable[[Client], Awaitable[str]]) -> None:
    """A visit that the server has to end, with or without an answer."""
    patience_s = PATIENCE_S + (CUT_S if visit is _never_reader else 0.0)  # an answer that is not read is not heard
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(patience_s) as limit:
            client.heard = lambda: limit.reschedule(loop.time() + patience_s)
            ended = await visit(client)
    except TimeoutError:
        if client.tally.stopped > time.monotonic():
            client.tally.fault("hung", f"{client.role}: {visit.__name__}")
        return
    except _GONE:
        ended = "cut"
    finally:
        client.heard = lambda: None
    client.tally.note(client.role, ended)


async def _slow_but_allowed(client: Client) -> str:
    row, _ = client.rng.choice(client.target.asked)
    data = client.request(json.dumps(row).encode())
    sent = float("inf")
    try:
        async with client.connected() as (reader, writer):
            for start in range(0, len(data), 40):
                writer.write(data[start : start + 40])
                await asyncio.sleep(0.2)
            sent = time.monotonic()
            client.answered(await read_answer(reader))
    except _GONE as error:
        if client.tally.stopped > sent:
            client.tally.fault("unanswered", f"slow sender: {error!r}")
    return "slow sender"


async def _endless_head(client: Client) -> str:
    async with client.connected() as (reader, writer):
        writer.write(client.head("")[:-2])
        while not reader.at_eof():
            writer.write(b"X-More: y\r\n")
            await writer.drain()
            with suppress(TimeoutError):
                await asyncio.wait_for(reader.read(1_000), 1.0)
    return "cut in the head"


async def _endless_body(client: Client) -> str:
    async with client.connected() as (reader, writer):
        writer.write(client.request(b"", length="Content-Length: 100000\r\n"))
        answering = asyncio.ensure_future(read_answer(reader))
        while not answering.done():
            writer.write(b" ")
            await asyncio.sleep(0.5)
        client.answered(answering.result())
    return "cut in the body"


async def _slow_reader(client: Client) -> str:
    async with client.connected(buffer=4_096) as (reader, writer):
        writer.write(client.request(client.target.large[0]) * 2)
        for _ in range(150):
            if not await reader.read(4_096):
                return "cut while reading"
            client.heard()
            await asyncio.sleep(0.1)
    return "slow reader left"


async def _never_reader(client: Client) -> str:
    """Ask for large answers over and over, and read nothing."""
    async with client.connected(buffer=4_096) as (reader, writer):
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        data = client.request(client.target.large[0])
        while not writer.is_closing():
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    writer.write(data)
                    await writer.drain()
                await asyncio.sleep(0.5)
    return "cut unread"


# --- greedy


async def greedy(client: Client) -> None:
    """Ask for as much as is allowed, or send more."""
    kind = client.rng.randrange(8)
    if kind < 4:
        number = client.rng.randrange(len(client.target.large))
        await _until_cut(client, lambda one: _sent(one, client.request(client.target.large[number])))
    elif kind == 4:
        await _until_cut(client, _much_head)
    elif kind == 5:
        await _until_cut(client, _chunks_without_end)
    else:
        await _until_cut(client, _pipelined)


async def _sent(client: Client, data: bytes) -> str:
    """Send bytes and read what comes, if anything does."""
    async with client.connected() as (reader, writer):
        writer.write(data)
        with suppress(*_GONE):
            client.answered(await read_answer(reader))
            return "answered"
    return "cut"


async def _much_head(client: Client) -> str:
    lines = client.rng.choice(
        ["X: " + "y" * 300_000 + "\r\n", "a:\r\n" * 5_000, "X-Name: value\r\n" * 20_000, "y" * 200_000 + ": x\r\n"]
    )
    data = client.request(b"{}", more=lines)
    if client.rng.random() < 0.3:
        data = b"GET /" + b"y" * 500_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"
    elif client.rng.random() < 0.3:
        data = client.head("Transfer-Encoding: chunked\r\n") + b"2\r\n{}\r\n0\r\nX: " + b"y" * 1_000_000
    return await _sent(client, data)


async def _chunks_without_end(client: Client) -> str:
    size = client.rng.choice([1, 60_000])
    chunk = f"{size:x}\r\n".encode() + b" " * size + b"\r\n"
    async with client.connected() as (reader, writer):
        writer.write(client.head("Transfer-Encoding: chunked\r\n"))
        answering = asyncio.ensure_future(read_answer(reader))
        with suppress(ConnectionError):
            while not answering.done():
                writer.write(chunk * max(1, 60_000 // len(chunk)))
                await writer.drain()
        client.answered(await answering)
    return "chunks ended"


async def _pipelined(client: Client) -> str:
    """Many requests at once; they must be answered in order."""
    row, wanted = client.rng.choice(client.target.asked)
    count = client.rng.choice([2, 50 if client.target.quick else 4])
    async with client.connected() as (reader, writer):
        sent = time.monotonic()
        writer.write(client.request(json.dumps(row).encode()) * count)
        for place in range(count):
            try:
                answer = await read_answer(reader)
            except _GONE as error:
                if client.tally.stopped > sent:
                    client.tally.fault("unanswered", f"pipelined {place} of {count}: {error!r}")
                break
            client.answered(answer)
            if answer.status == 200 and _found(client, answer) != json.loads(json.dumps(wanted)):
                client.tally.fault("wrong", f"pipelined {place} of {count}")
            if answer.headers.get("connection") == "close":
                break  # the rest is not accepted
    return "pipelined"


# --- hostile


async def hostile(client: Client) -> None:
    """Send what is no request, or none that is allowed."""
    kind = client.rng.randrange(4)
    if kind == 0:
        data = client.rng.choice(_malformed(client))
    elif kind == 1 and client.target.token:
        token = client.rng.choice(["", "wrong", client.token[:-1], client.token + "x", "\xff", client.token.upper()])
        data = client.request(json.dumps(client.target.asked[0][0]).encode(), token)
        answer = await full_visit(client, data, "wrong token")
        if answer is not None and answer.status == 200:
            client.tally.fault("wrong", f"the token {token!r} was let in")
        return
    elif kind == 2:
        await full_visit(client, client.request(client.rng.choice(client.target.wrong)), "wrong types")
        return
    else:
        await full_visit(client, client.request(_damaged(client)), "damaged JSON")
        return
    await _until_cut(client, lambda one: _sent(one, data))


def _damaged(client: Client) -> bytes:
    """A good request with some bytes changed, cut or doubled."""
    body = bytearray(json.dumps(client.rng.choice(client.target.asked)[0]).encode())
    for _ in range(client.rng.randint(1, 4)):
        place = client.rng.randrange(len(body))
        body[place : place + client.rng.randint(0, 3)] = client.rng.randbytes(client.rng.randint(0, 3))
        if client.rng.random() < 0.2:
            body = body[: place + 1] + body
    return bytes(body)


def _malformed(client: Client) -> list[bytes]:
    """Broken HTTP, and requests that two readers may take for different ones."""
    body = json.dumps(client.target.asked[0][0]).encode()
    size = f"Content-Length: {len(body)}\r\n"
    inner = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    chunked = "Transfer-Encoding: chunked\r\n"
    heads = [
        size + size, size + "Content-Length: 1\r\n", "Content-Length: -1\r\n", "Content-Length: 1e3\r\n",
        "Content-Length: 99999999999999999999\r\n", "Content-Length: +5\r\n", size + chunked,
        "Transfer-Encoding: xchunked\r\n", "Transfer-Encoding: chunked, identity\r\n", chunked + chunked,
        "Transfer-Encoding : chunked\r\n", " folded: x\r\n", "no colon\r\n", "X: a\x00b\r\n", "X: a\rb\r\n", "X\n",
        size + "Expect: 100-continue\r\n", size + "Expect: x\r\n", size + "Connection: close, upgrade\r\n",
        size + "Connection: Upgrade\r\nUpgrade: websocket\r\n", size + "Content-Encoding: gzip\r\n",
    ]  # fmt: skip
    chunks = [b"zz\r\n", b"ffffffffffffffff\r\n", b"-1\r\n", b"5;" + b"x" * 90_000, b"2\r\n{}\r\n0\r\nX: y\r\n\r\n"]
    lines = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\x00" * 300, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n", b"GET /\r\n\r\n", b"GET  / HTTP/1.1\r\n\r\n", b"get / http/1.1\r\n\r\n",
        b"GET /%ff%00 HTTP/1.1\r\nHost: x\r\n\r\n", b"GET http://[::1 HTTP/1.1\r\n\r\n", b"HEAD / HTTP/1.1\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
        b"TRACE / HTTP/1.1\r\nHost: x\r\n\r\n", b"DELETE /health HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabcde",
        b"GET /health HTTP/1.0\r\n\r\n", b"GET //health/../info HTTP/1.1\r\nHost: x\r\n\r\n", b"\r\n" * 1_000,
    ]  # fmt: skip
    return [
        *(client.request(body, more=head, length="") + inner for head in heads),
        *(client.request(chunk, length=chunked) for chunk in chunks),
        *lines,
        client.request(body) + b"\x00\x01\x02 rubbish",
    ]


# --- vanishing


async def vanishing(client: Client) -> None:
    """Hang up somewhere; nothing is expected but that nobody else notices."""
    row, _ = client.rng.choice(client.target.asked)
    body = json.dumps({**row, "stream": True} if client.target.streams else row).encode()
    data = client.request(client.rng.choice([body, body, client.target.large[0]]))
    where = client.rng.choice(["at once", "head", "body", "sent", "answer"])
    cut = {"at once": 0, "head": 30, "body": len(data) - 5}.get(where, len(data))
    with suppress(*_GONE, TimeoutError):
        async with asyncio.timeout(PATIENCE_S), client.connected() as (reader, writer):
            writer.write(data[:cut])
            await writer.drain()
            if where == "answer":
                await reader.read(client.rng.choice([1, 200, 2_000]))
            await asyncio.sleep(client.rng.choice([0.0, 0.01, 0.2]))
            if client.rng.random() < 0.5:  # a reset in place of a farewell
                gone = cast(socket.socket, writer.get_extra_info("socket"))
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.tally.note(client.role, where)
    await asyncio.sleep(0.02)


Visit: TypeAlias = Callable[[Client], Awaitable[None]]
ROLES: dict[str, Visit] = {"good": good, "slow": slow, "greedy": greedy, "hostile": hostile, "vanishing": vanishing}


def roles_of(clients: int) -> Sequence[str]:
    """Two thirds are good; the others take turns."""
    bad = [role for role in ROLES if role != "good"]
    return ["good" if place % 3 else bad[place // 3 % len(bad)] for place in range(clients)]


async def repeated(client: Client) -> None:
    """Make visits until cancelled, or until the server has gone."""
    while True:
        try:
            await ROLES[client.role](client)
        except OSError:
            if client.tally.stopped < time.monotonic():
                return
            await asyncio.sleep(0.1)
        if client.tally.stopped < time.monotonic():
            return
