"""What warmroute costs on this machine, and what an engine's steps cost."""
