"""Cache killers: what makes prompts differ early that are the same further on."""
