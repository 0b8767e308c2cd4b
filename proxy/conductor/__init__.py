"""The conductor: has engines keep, give up, fetch and copy what traffic shows."""
