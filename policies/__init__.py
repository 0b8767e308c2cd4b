"""Pure decisions and data structures: no I/O, no asyncio, no clock of their own."""
