"""Access records: a line a request, for replays; never any text of a prompt."""
