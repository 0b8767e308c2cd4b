"""Text and conversations to token ids: tokenizers and chat templates."""
