"""The dashboard: its page, and what keeps an open page up to date."""
