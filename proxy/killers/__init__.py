"""Cache killers: the prompts that are looked at, and what is told of them."""
