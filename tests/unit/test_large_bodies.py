"""Bodies that are read by threads, and given up before that."""

import asyncio
import sys
import threading

from warmroute.proxy.body_wait import NUM_THREADS, LargeBodies
from warmroute.proxy.http.head import RequestHead
from warmroute.proxy.prompt import PromptReader


async def test_a_body_given_up_in_line_is_let_go_at_once() -> None:
    """Nobody counts it any more, so the line must not hold it."""
    bodies, is_free = LargeBodies(), threading.Event()
    for _ in range(NUM_THREADS):
        bodies._executor.submit(is_free.wait)
    head = RequestHead(b"POST", b"/v1/completions", "1.1", [(b"Host", b"h")])
    body = b'{"prompt": "%b"}' % (b"a" * 1000)
    num_held = sys.getrefcount(body)
    reading = asyncio.create_task(bodies.read(PromptReader(), head, body))
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait([reading])
    assert reading.cancelled()
    del reading
    try:
        assert sys.getrefcount(body) == num_held
    finally:
        is_free.set()
        bodies.close()
