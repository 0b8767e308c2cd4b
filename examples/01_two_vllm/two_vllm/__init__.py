"""Run real chats through warmroute in front of two vLLM engines."""
