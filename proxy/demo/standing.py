"""What is told of a demo that stays up: its addresses, and lines to try."""

import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from warmroute.proxy.demo.engine_view import EngineView
from warmroute.proxy.demo.front import Front


def standing(
    policy: str, front: Front, engines: Sequence[EngineView], model: str
) -> str:
    """Return the addresses and commands that work against *front*."""
    lines = [
        f"warmroute  {front.url} ({policy})",
        f"dashboard  {front.admin_url}/",
        f"state      {front.admin_url}/api/state",
        *(f"engine {engine.name}   {engine.url}" for engine in engines),
    ]
    if front.taken:
        ports = " and ".join(map(str, front.taken))
        lines += ["", f"taken by another process, so not used: port {ports}"]
    word, admin = _command(), f"--admin {front.admin_url}"
    commands = [
        f"{word} {verb} {admin}" for verb in ("why --last", "stats", "kv stats")
    ]
    return "\n".join(
        [*lines, "", _curl(front.url, model), *commands, "", "Ctrl-C ends it"]
    )


def _command() -> str:
    """Return how to call this very warmroute from the shell that started it."""
    script = Path(sys.executable).with_name("warmroute")
    found = shutil.which("warmroute")
    if found is not None and Path(found) == script:
        return "warmroute"
    if not script.exists():
        return shlex.join([sys.executable, "-m", "warmroute.proxy.cli"])
    here = Path.cwd()
    return shlex.quote(
        str(script.relative_to(here) if script.is_relative_to(here) else script)
    )


def _curl(url: str, model: str) -> str:
    message = {"role": "user", "content": "What is the capital of France?"}
    body = json.dumps({"model": model, "messages": [message], "max_tokens": 16})
    return (
        f"curl -si {url}/v1/chat/completions -H 'content-type: application/json' "
        f"-H 'x-warmroute-explain: 1' -d '{body}'"
    )
