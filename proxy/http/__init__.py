"""The data port: HTTP/1.1 on both sides as asyncio Protocols over llhttp."""
