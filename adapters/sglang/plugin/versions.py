"""The releases of SGLang whose insides the plugin knows."""

SUPPORTED = ("0.5.23",)
"""Releases that were tried; ``warmroute[sglang]`` names the same ones."""


def version_fault(version: str) -> str | None:
    """Say why a release of SGLang is not supported; None if it is."""
    if version.partition("+")[0] in SUPPORTED:
        return None
    return (
        f"SGLang {version[:40]} is not known to this plugin "
        f"(known: {', '.join(SUPPORTED)}); install one of these, or a newer warmroute"
    )
