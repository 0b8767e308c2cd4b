"""The plugin inside SGLang: KV control of its radix cache."""
