"""Make the request bodies that the load generator sends."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ID_MARK = "@" * 10  # the load generator writes the request's number over it


@dataclass(frozen=True, slots=True)
class Workload:
    """One shape of traffic, and how it is driven."""

    name: str
    size_bytes: int
    num_bodies: int
    num_groups: int  # prompts of a group share three quarters of their text
    connections: int
    seconds: float = 2.0
    chunks: int = 0  # content chunks of a streamed answer; 0: one JSON object
    every_ms: int = 0
    ramp_us: int = 0  # between the first requests of two connections
    requests: int = 0  # to send, however long it takes; 0: until the time is over

    @property
    def max_requests(self) -> int:
        """One request a connection when streaming, no limit unless one is given."""
        return self.connections if self.chunks else self.requests

    def shortened(self, seconds: float) -> "Workload":
        """Return the same traffic for about *seconds*."""
        chunks = int(seconds * 1000 / self.every_ms) if self.chunks else 0
        return replace(self, seconds=seconds, chunks=chunks)

    @property
    def deadline_s(self) -> float:
        """When to stop sending; a stream's end is awaited all the same."""
        return 30.0 if self.chunks else self.seconds


WORKLOADS = (
    Workload("1k", 1024, 512, 64, connections=32),
    Workload("32k", 32768, 128, 32, connections=32),
    Workload("256k", 262144, 32, 8, connections=16),
    Workload(
        "sse", 1024, 512, 64, connections=256, chunks=100, every_ms=20, ramp_us=78
    ),
)


def words(rng: random.Random) -> Iterator[str]:
    """Yield made-up words without end."""
    vocabulary = [
        "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9)))
        for _ in range(5000)
    ]
    while True:
        yield rng.choice(vocabulary)


def prose(source: Iterator[str], size: int) -> str:
    """Return exactly *size* characters of text."""
    parts: list[str] = []
    length = 0
    while length < size:
        word = next(source)
        parts.append(word)
        length += len(word) + 1
    return " ".join(parts)[: max(size, 0)].ljust(size, "x")


def body(workload: Workload, content: str) -> bytes:
    """Return one chat request as JSON."""
    fields: dict[str, object] = {"model": "mock", "temperature": 0.7}
    if workload.chunks:
        fields["stream"] = True
        fields["max_tokens"] = workload.chunks
    fields["messages"] = [
        {"role": "system", "content": "You are helpful."},
        {"role": "user", "content": content},
    ]
    return json.dumps(fields, separators=(",", ":")).encode()


def bodies(workload: Workload) -> Iterator[bytes]:
    """Yield the bodies of *workload*, each of the size it asks for."""
    source = words(random.Random(workload.size_bytes))
    shared = [
        prose(source, workload.size_bytes * 3 // 4) for _ in range(workload.num_groups)
    ]
    for i in range(workload.num_bodies):
        group = i % workload.num_groups
        head = f"#group={group}# "
        if workload.chunks:
            head += f"#chunks={workload.chunks}# #every={workload.every_ms}# "
        tail = f" #id={ID_MARK}"
        room = workload.size_bytes - len(body(workload, head + tail))
        text = shared[group][: room * 4 // 5]
        own = " " + prose(source, room - len(text) - 1)
        yield body(workload, head + text + own + tail)


def write_bodies(workload: Workload, path: Path) -> None:
    """Write the records that the load generator reads."""
    with path.open("wb") as file:
        for data in bodies(workload):
            file.write(b"%d\n" % len(data) + data)
