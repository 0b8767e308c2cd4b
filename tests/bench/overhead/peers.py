"""Know how to install, configure and start each proxy under test."""

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

ROUTERS = {"sglang-router": "0.3.2", "vllm-router": "0.1.17"}
INSTALL_TIMEOUT_S = 600

NGINX_CONFIG = """\
{user}worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  keepalive_requests 10000000;
  client_max_body_size 1g;
  client_body_buffer_size 1m;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  upstream engines {{
    {servers}
    keepalive 1024;
    keepalive_requests 10000000;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://engines;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""

WARMROUTE_CONFIG = """\
listen: 127.0.0.1:{port}
admin: 127.0.0.1:{spare_port}
policy: {{name: {policy}}}
backends:
{backends}
"""


class Unavailable(Exception):
    """A proxy cannot be run here; the message says why."""


@dataclass(frozen=True, slots=True)
class Site:
    """What a proxy is given: a folder of its own, ports, and engines."""

    folder: Path
    port: int
    spare_port: int
    engine_ports: Sequence[int]
    python: Path
    """The interpreter whose warmroute is measured."""

    @property
    def engine_urls(self) -> list[str]:
        """Return the addresses of the mock engines."""
        return [f"http://127.0.0.1:{port}" for port in self.engine_ports]


def peers_folder() -> Path:
    """Return the place outside the checkout where the routers are installed."""
    cache = os.environ.get("WARMROUTE_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "warmroute"
    )
    pins = "-".join(f"{name}-{version}" for name, version in ROUTERS.items())
    return Path(cache) / f"peers-{pins}"


def install_routers() -> Path:
    """Make the peers' environment when missing; return its Python."""
    folder = peers_folder()
    python = folder / "bin" / "python"
    stamp = folder / ".installed"
    if stamp.exists():
        return python
    print(f"installing {', '.join(ROUTERS)} into {folder}", file=sys.stderr)
    venv.create(folder, with_pip=True, clear=True)
    pins = [f"{name}=={version}" for name, version in ROUTERS.items()]
    for wanted in (["--upgrade", "pip"], pins):
        _pip_install(python, wanted)
    stamp.touch()
    return python


def _pip_install(python: Path, wanted: Sequence[str]) -> None:
    done = subprocess.run(
        [python, "-m", "pip", "install", "-q", *wanted],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=INSTALL_TIMEOUT_S,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise Unavailable(f"pip install {' '.join(wanted)} failed: {reason}")


def _nginx(site: Site) -> list[str]:
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        raise Unavailable("nginx is not installed; on Debian: apt-get install nginx")
    config = site.folder / "nginx.conf"
    config.write_text(
        NGINX_CONFIG.format(
            # As root the workers would become nobody, who may not enter the folder.
            user="user root;\n" if os.geteuid() == 0 else "",
            folder=site.folder,
            port=site.port,
            servers="\n    ".join(
                f"server 127.0.0.1:{port};" for port in site.engine_ports
            ),
        )
    )
    return [program, "-c", str(config), "-p", str(site.folder)]


def _router(module: str, policy: str) -> Callable[[Site], list[str]]:
    def command(site: Site) -> list[str]:
        options = {
            "--host": "127.0.0.1",
            "--port": str(site.port),
            "--policy": policy,
            "--prometheus-host": "127.0.0.1",
            "--prometheus-port": str(site.spare_port),
            "--log-level": "error",
        }
        flat = [part for option in options.items() for part in option]
        python = str(install_routers())
        return [python, "-m", module, *flat, "--worker-urls", *site.engine_urls]

    return command


def is_compiled(python: Path) -> bool:
    """Tell whether the request path of *python*'s warmroute is compiled."""
    code = "import warmroute.proxy.router as it; print(it.__file__)"
    done = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, timeout=60
    )
    if done.returncode:
        raise Unavailable(f"warmroute is not installed for {python}")
    return done.stdout.strip().endswith(tuple(EXTENSION_SUFFIXES))


def _warmroute(policy: str) -> Callable[[Site], list[str]]:
    def command(site: Site) -> list[str]:
        config = site.folder / "warmroute.yaml"
        config.write_text(
            WARMROUTE_CONFIG.format(
                port=site.port,
                spare_port=site.spare_port,
                policy=policy,
                backends="\n".join(
                    f"  - {{name: e{i}, url: {url}, engine: vllm}}"
                    for i, url in enumerate(site.engine_urls)
                ),
            )
        )
        module = "warmroute.proxy.cli"
        return [str(site.python), "-m", module, "serve", "-c", str(config)]

    return command


# The first four are the measured set; the others answer "what does the policy cost".
PROXIES: dict[str, Callable[[Site], list[str]]] = {
    "nginx": _nginx,
    "sglang-router": _router("sglang_router.launch_router", "cache_aware"),
    "vllm-router": _router("vllm_router.launch_router", "round_robin"),
    "warmroute": _warmroute("expected_ttft"),
    "sglang-router-rr": _router("sglang_router.launch_router", "round_robin"),
    "warmroute-rr": _warmroute("round_robin"),
}
DEFAULT_PROXIES = ("nginx", "sglang-router", "vllm-router", "warmroute")
