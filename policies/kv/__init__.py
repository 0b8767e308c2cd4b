"""What is known of cached blocks: block hashes and the prefix index."""
