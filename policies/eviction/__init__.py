"""Which cached blocks, and which tokens of a sequence, are given up first."""
