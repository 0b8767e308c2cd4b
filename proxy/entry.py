"""Where the script ``warmroute`` begins: Ctrl-C is minded before all imports."""

INTERRUPTED = 130


def main() -> int:
    """Run the command line; an interrupt while it still loads ends it quietly."""
    try:
        from warmroute.proxy.cli import main as run

        return run()
    except KeyboardInterrupt:
        return INTERRUPTED
