"""The plugin that runs inside vLLM, and lets warmroute drive its prefix cache."""
