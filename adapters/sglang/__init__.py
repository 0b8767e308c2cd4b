"""The SGLang adapter."""
