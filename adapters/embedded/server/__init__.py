"""The engine's HTTP, metrics and KV event interfaces."""
