"""Several models behind one server: each runs in a process of its own."""
