"""Everything that knows one engine."""
