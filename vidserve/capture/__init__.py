"""Capture: one thread per camera reads, stamps and, for keyframes only, letterboxes."""
