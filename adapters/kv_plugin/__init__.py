"""What the plugins inside engines share: the door, its calls, and slices of work."""
