"""What a fleet's caches should keep: learned returns, prices, and wishes."""
