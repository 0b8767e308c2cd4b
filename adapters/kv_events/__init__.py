"""KV events: what engines publish of their caches, received whole and in order."""
