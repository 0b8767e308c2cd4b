"""``warmroute kv``: see and steer the caches behind a running proxy."""

import argparse
import json
from pathlib import Path
from typing import Any

from warmroute.policies.errors import ConfigError
from warmroute.proxy.commands.admin import add_admin_address, admin_client
from warmroute.proxy.commands.numbers import positive, whole

_BLOCKS = ("evict", "retain", "release", "demote", "offload", "restore")
VERBS = ("snapshot", "stats", "flush", *_BLOCKS, "policy", "budget")
_TTL_S = 600.0
_WAIT_S = 60  # for engines that move gigabytes
_MAX_ANSWER = 256 << 20
_MAX_TTL_S = 86_400
_HEX_DIGITS = 16


class KVCommand:
    """Send one verb of KV control to one backend or all."""

    name = "kv"
    help = "see and steer the engines' caches"
    description = (
        "See and steer the prefix caches of the engines behind a running warmroute, "
        "through its admin port. Blocks are named by a prompt, a file, a hash, a "
        "session or token ids. The admin token comes from WARMROUTE_ADMIN_TOKEN."
    )
    examples = """examples:
  warmroute kv stats
  warmroute kv retain --file system_prompt.txt --ttl 3600
  warmroute kv evict --prompt "You are a helpful assistant." --backend a --dry-run
  warmroute kv restore --session alice
  warmroute kv demote --hash 9f2c4e1b00d1a7c3
  warmroute kv policy --name lfu
  warmroute kv budget --method h2o --share 0.2 --sinks 4
  warmroute kv restore --request chatcmpl-7f3a --backend a

exit codes: 0 every backend did it; 1 one did not, nobody answers, or nothing could be
done: a flush dropped nothing of a cache in use, no named block was evicted or
retained anywhere; 2 bad usage
"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        add = parser.add_argument
        add("verb", choices=VERBS, metavar="VERB", help=", ".join(VERBS))
        add("--backend", metavar="NAME", help="only this one (default: all)")
        add_admin_address(parser)
        add("--dry-run", action="store_true", help="only say what it would meet")
        add("--json", action="store_true", help="print JSON, not a table")
        _add_names(parser)
        _add_settings(parser)

    def run(self, options: argparse.Namespace) -> int:
        """Send it, print what came of it, and return the exit code."""
        body = _body(options)
        client = admin_client(options, timeout_s=_WAIT_S, max_bytes=_MAX_ANSWER)
        verb = "snapshot" if options.verb == "stats" else options.verb
        answer = client.decode(client.post(f"/api/kv/{verb}", body), dict[str, Any])
        results = answer.get("results")
        if not isinstance(results, dict):
            results = {}
        if options.verb == "stats":
            return _print_stats(
                options, client.read("/api/state", dict[str, Any]), results
            )
        from warmroute.proxy.kv.report import came_to_nothing, report

        print(json.dumps(answer) if options.json else report(verb, results))
        is_vain = not options.dry_run and came_to_nothing(verb, results)
        return int(is_vain or any("error" in one for one in results.values()))


def _print_stats(
    options: argparse.Namespace, state: dict[str, object], results: dict[str, Any]
) -> int:
    """Print the caches; an engine that cannot list its blocks is no failure."""
    from warmroute.proxy.kv.report import stats

    if options.json:
        rows = state.get("backends")
        kv = {one["name"]: one for one in rows} if isinstance(rows, list) else {}
        print(json.dumps({"backends": kv, "snapshots": results}))
    else:
        print(stats(state, results))
    return 0


def _add_names(parser: argparse.ArgumentParser) -> None:
    names = parser.add_argument_group("which blocks").add_mutually_exclusive_group()
    names.add_argument("--prompt", metavar="TEXT", help="those of a text")
    names.add_argument(
        "--file",
        type=Path,
        metavar="FILE",
        help="those of a text file, or of a JSON file: a list of token ids, or an "
        "object with messages",
    )
    names.add_argument(
        "--hash",
        action="append",
        metavar="HASH",
        help="a prefix, by its 16 hexadecimal digits in /api/view; or a block, by the "
        "engine's own number, which may be given more than once",
    )
    names.add_argument("--session", metavar="KEY", help="a session's newest prompt")
    names.add_argument(
        "--request",
        metavar="ID",
        help="restore: those that a running request gave back under a budget",
    )
    names.add_argument("--tokens", metavar="ID[,ID...]", help="those of token ids")
    parser.add_argument("--cache-salt", metavar="SALT", help="salt of the prompt")
    parser.add_argument(
        "--skip-blocks",
        type=whole(0),
        metavar="N",
        help="leading blocks of a prompt or of tokens not meant (0)",
    )


def _add_settings(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    ttl = positive(_MAX_TTL_S, " seconds")
    add("--ttl", type=ttl, metavar="S", help=f"retain: seconds ({_TTL_S:g})")
    add("--name", metavar="POLICY", help="policy: put this one in force")
    add("--option", action="append", metavar="KEY=VALUE", help="policy: its options")
    add(
        "--hold-tokens",
        type=whole(1),
        metavar="N",
        help="restore --request: most tokens that it holds from now on (all)",
    )
    add("--method", metavar="METHOD", help="budget: put this one in force")
    add("--budget-tokens", type=whole(1), metavar="N", help="budget: tokens a sequence")
    add("--share", type=positive(1), metavar="X", help="budget: share of the prompt")
    add("--sinks", type=whole(0), metavar="N", help="budget: first tokens always kept")
    add(
        "--recent", type=whole(0), metavar="N", help="budget: newest tokens always kept"
    )
    add(
        "--host-bytes",
        type=whole(1),
        metavar="N",
        help="budget: bytes for copies of what goes, which restore --request needs",
    )


def _body(options: argparse.Namespace) -> dict[str, object]:
    body: dict[str, object] = {**_named(options), **_settings(options)}
    if options.verb in _BLOCKS and not _named(options):
        options.parser.error(
            f"{options.verb} needs blocks: --prompt, --file, --hash, --session or "
            "--tokens"
        )
    if options.request is not None and options.verb != "restore":
        options.parser.error(f"{options.verb} takes no --request; restore does")
    if options.hold_tokens is not None and options.request is None:
        options.parser.error("--hold-tokens goes with restore --request")
    if options.verb not in _BLOCKS and _named(options):
        options.parser.error(f"{options.verb} takes no blocks")
    if options.backend is not None:
        body["backend"] = options.backend
    if options.dry_run:
        body["dry_run"] = True
    return body


def _named(options: argparse.Namespace) -> dict[str, object]:
    named: dict[str, object] = {}
    if options.prompt is not None:
        named["prompt"] = options.prompt
    elif options.file is not None:
        named |= _read_file(options.file)
    elif options.hash:
        named |= _hashes(options.hash)
    elif options.session is not None:
        named["session"] = options.session
    elif options.request is not None:
        named["request_id"] = options.request
    elif options.tokens is not None:
        named["token_ids"] = _integers("--tokens", options.tokens.split(","))
    if options.prompt == "":
        raise ConfigError("--prompt: '' (allowed: a text)")
    is_prompt = not named.keys() & {"hashes", "prefix", "request_id", "session"}
    if not is_prompt and (options.cache_salt is not None or options.skip_blocks):
        options.parser.error(
            "--cache-salt and --skip-blocks go with --prompt, --file or --tokens; "
            "--hash, --session and --request name their blocks fully"
        )
    if named:
        if options.cache_salt is not None:
            named["cache_salt"] = options.cache_salt
        if options.skip_blocks:
            named["skip_blocks"] = options.skip_blocks
    return named


def _settings(options: argparse.Namespace) -> dict[str, object]:
    """Return what belongs to the verb itself; others' flags are bad usage."""
    given = {
        "retain": {"ttl_s": options.ttl},
        "policy": {"name": options.name, "options": _pairs(options.option)},
        "budget": {
            "method": options.method,
            "tokens": options.budget_tokens,
            "share": options.share,
            "sinks": options.sinks,
            "recent": options.recent,
            "host_bytes": options.host_bytes,
        },
        "restore": {"hold_tokens": options.hold_tokens},
    }
    for verb, fields in given.items():
        if verb != options.verb and any(one is not None for one in fields.values()):
            options.parser.error(f"{options.verb} takes no flag of {verb}")
    if options.verb == "retain" and options.ttl is None:
        return {"ttl_s": _TTL_S}
    fields = given.get(options.verb, {})
    return {key: value for key, value in fields.items() if value is not None}


def _pairs(texts: list[str] | None) -> dict[str, object] | None:
    if texts is None:
        return None
    pairs: dict[str, object] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise ConfigError(f"--option: {text!r} (allowed: KEY=VALUE)")
        try:
            pairs[key] = json.loads(value)
        except ValueError:
            pairs[key] = value
        except RecursionError:
            raise ConfigError(
                f"--option: {key} is nested too deep (allowed: a text or JSON)"
            ) from None
    return pairs


def _hashes(texts: list[str]) -> dict[str, object]:
    digits = texts[0].removeprefix("0x")
    if len(texts) == 1 and len(digits) == _HEX_DIGITS and not _is_number(texts[0]):
        return {"prefix": digits}
    return {"hashes": _integers("--hash", texts)}


def _is_number(text: str) -> bool:
    """Tell a decimal number from hexadecimal digits; ``0x`` makes sure of those."""
    return text.isascii() and text.isdecimal() and text[0] != "0"


def _integers(flag: str, texts: list[str]) -> list[int]:
    try:
        return [int(text) for text in texts]
    except ValueError:
        raise ConfigError(
            f"{flag}: {','.join(texts)[:80]!r} (allowed: whole numbers; or, as the "
            "only --hash, 16 hexadecimal digits)"
        ) from None


def _read_file(path: Path) -> dict[str, object]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"--file: {path} cannot be read: {reason}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"--file: {path} cannot be read: it is no UTF-8 text"
        ) from error
    if not text.strip():
        raise ConfigError(f"--file: {path} is empty (allowed: a text or JSON)")
    if path.suffix != ".json":
        return {"prompt": text}
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--file: {path} is not JSON: {error}") from error
    if isinstance(content, list) and content:
        return {"token_ids": content}
    if isinstance(content, dict) and content.get("messages"):
        chat = {"messages": content["messages"], "add_generation_prompt": False}
        return {**chat, **({"tools": content["tools"]} if "tools" in content else {})}
    raise ConfigError(
        f"--file: {path} (allowed: a list of token ids, or an object with messages; "
        "give a text another ending than .json)"
    )
