"""The releases of vLLM whose insides the plugin knows."""

import re

SUPPORTED = ((0, 32),)
"""Release lines that were tried; ``warmroute[vllm]`` names the same ones."""

_NUMBERS = re.compile(r"(\d+)\.(\d+)\.(\d+)([^+]*)")


def version_fault(version: str) -> str | None:
    """Say why a release of vLLM is not supported; None if it is."""
    found = _NUMBERS.match(version)
    if found and (int(found[1]), int(found[2])) in SUPPORTED:
        return None
    known = ", ".join(f"{major}.{minor}.*" for major, minor in SUPPORTED)
    return (
        f"unsupported: vLLM {version[:40]} is not known to this plugin "
        f"(known: {known}); install one of these, or a newer warmroute"
    )
