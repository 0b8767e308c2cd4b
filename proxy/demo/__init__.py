"""Two engines, warmroute in front, and the same chats under two policies."""
