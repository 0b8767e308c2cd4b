"""Requests that the router holds back until their backend has room."""

from warmroute.proxy.queue.queue import HoldQueue

__all__ = ["HoldQueue"]
