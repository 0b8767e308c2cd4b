"""KV control of the fleet: what each backend can be told, and telling it."""
