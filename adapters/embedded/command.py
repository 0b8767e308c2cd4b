"""``warmroute engine``: run the embedded engine as a process.

What needs NumPy is imported by `run` alone, so that ``--help`` works without the
extra, and the number of threads can be set before NumPy reads it.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from warmroute.policies.errors import ConfigError, PolicyError, WarmrouteError

FAILED = 1
BAD_USAGE = 2
INTERRUPTED = 130

EVENTS_ENDPOINT = "tcp://*:5557"

_EXTRA = (
    "gguf",
    "jinja2",
    "numpy",
    "safetensors",
    "threadpoolctl",
    "tokenizers",
    "zmq",
)
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
# Written out: reading the entry points would slow every command's start.
_EVICTIONS = (
    *("adaptive", "arc", "fifo", "gdsf", "lfu", "lrfu", "lru", "s3fifo"),
    "workload_aware",
)
_LEVELS = ("debug", "info", "warning", "error")


class EngineCommand:
    """The command, as the entry-point group ``warmroute.commands`` wants it."""

    name = "engine"
    help = "run the embedded engine (NumPy, no GPU)"
    description = (
        "Serve a Llama-shaped model on the CPU behind the API of OpenAI, with the "
        "prefix cache, KV events and metrics of vLLM."
    )
    examples = """examples:
  warmroute engine
  warmroute engine --model tiny --port 8102 --num-blocks 64
  warmroute engine --model ./smollm2 --eviction lru --kv-events

exit codes: 0 stopped as asked, 1 failed, 2 bad usage, or a missing extra
"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the flags of the command."""
        _add_serving(parser)
        _add_limits(parser)
        _add_memory(parser)
        _add_events(parser)

    def run(self, options: argparse.Namespace) -> int:
        """Serve until a signal; returns the exit code of the process."""
        try:
            _check(options)
            from warmroute.adapters.embedded.server.process import run_engine

            return run_engine(options)
        except ImportError as error:
            return _fail(_explain_import(error), BAD_USAGE)
        except (ConfigError, PolicyError) as error:
            return _fail(error, BAD_USAGE)
        except WarmrouteError as error:
            return _fail(error, FAILED)
        except (OSError, MemoryError) as error:
            reason = str(error) or "out of memory"
            return _fail(f"cannot start: {reason.lower()}", FAILED)
        except KeyboardInterrupt:
            return INTERRUPTED


def _add_serving(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host", default="127.0.0.1", help="interface to listen on (127.0.0.1)"
    )
    parser.add_argument(
        "--port", type=_whole(0, 65535), default=8101, help="0 takes a free one (8101)"
    )
    parser.add_argument(
        "--model",
        metavar="PATH",
        help="GGUF file, directory with safetensors, or tiny for a random one "
        "(default: the packaged SmolLM2-135M)",
    )
    parser.add_argument(
        "--served-model-name",
        nargs="+",
        type=_name,
        metavar="NAME",
        help="what requests call the model (default: its own name)",
    )
    parser.add_argument(
        "--log-level",
        choices=_LEVELS,
        default="info",
        help="least that is logged (info)",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-model-len",
        type=_whole(2),
        metavar="TOKENS",
        help="longest prompt and output together (default: what fits)",
    )
    parser.add_argument(
        "--max-num-seqs",
        type=_whole(1),
        default=16,
        metavar="N",
        help="sequences that run at the same time (16)",
    )
    parser.add_argument(
        "--max-batched-tokens",
        type=_whole(1),
        default=2048,
        metavar="N",
        help="tokens computed in one step (2048)",
    )
    parser.add_argument(
        "--max-shared-tokens",
        type=_whole(1),
        default=512,
        metavar="N",
        help="the same where sequences wait for one another (512)",
    )
    parser.add_argument(
        "--threads",
        type=_whole(1, 1024),
        metavar="N",
        help="cores that compute, each beyond the first with a process of its own "
        "(default: as many as NumPy has threads, 4 at most)",
    )


def _add_memory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--num-blocks",
        type=_whole(1),
        default=512,
        metavar="N",
        help="blocks of KV (512)",
    )
    parser.add_argument(
        "--block-size",
        type=_whole(1, 1024),
        default=16,
        metavar="TOKENS",
        help="tokens a block (16)",
    )
    parser.add_argument(
        "--eviction",
        default="lru",
        metavar="NAME",
        help=f"block eviction policy: {', '.join(_EVICTIONS)}, or a plugin's (lru)",
    )
    parser.add_argument(
        "--host-blocks",
        type=_whole(0),
        default=0,
        metavar="N",
        help="blocks of the host tier, for offload and restore (0: none)",
    )


def _add_events(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kv-events",
        nargs="?",
        const=EVENTS_ENDPOINT,
        metavar="ENDPOINT",
        help=f"publish KV events over ZeroMQ (default endpoint: {EVENTS_ENDPOINT})",
    )
    parser.add_argument(
        "--kv-events-replay",
        metavar="ENDPOINT",
        help="where missed events are asked for (default: nowhere)",
    )
    parser.add_argument(
        "--kv-events-topic",
        default="",
        metavar="TOPIC",
        help="first frame of each event (empty)",
    )


def _name(text: str) -> str:
    """Read a name that requests can send, for argparse."""
    if not text.strip():
        raise argparse.ArgumentTypeError(
            f"{text!r} (allowed: a name of 1 character up)"
        )
    return text


def _whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a parser of whole numbers in a range, for argparse."""
    allowed = f"{least} or more" if most is None else f"{least} to {most}"

    def parse(text: str) -> int:
        value = int(text) if text.isascii() and text.isdecimal() else -1
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"{text!r} (allowed: {allowed})")
        return value

    return parse


def _check(options: argparse.Namespace) -> None:
    """Refuse what cannot work, before anything is loaded, and set the threads."""
    model = options.model
    if model not in (None, "tiny") and not Path(model).expanduser().exists():
        raise ConfigError(
            f"--model {model}: no such file or directory; give a GGUF file, a "
            "directory with safetensors, or tiny"
        )
    if options.kv_events_replay and not options.kv_events:
        raise ConfigError("--kv-events-replay needs --kv-events")
    if options.threads is None:
        return
    if "numpy" in sys.modules:
        raise ConfigError(
            "--threads: NumPy is loaded already; set OPENBLAS_NUM_THREADS instead"
        )
    os.environ.update(dict.fromkeys(_THREADS, str(options.threads)))


def _explain_import(error: ImportError) -> str:
    top = (error.name or "").partition(".")[0]
    if top not in _EXTRA:
        raise error
    return f"package {top!r} is missing; pip install 'warmroute[embedded]'"


def _fail(message: object, code: int) -> int:
    sys.stderr.write(f"warmroute engine: {message}\n")
    return code
