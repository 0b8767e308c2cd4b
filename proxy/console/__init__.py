"""What the terminal shows of a running proxy; all of it comes by the admin port."""
