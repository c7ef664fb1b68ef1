"""Variables and connections, encrypted."""
