"""Llama-shaped models in NumPy over paged KV."""
