"""Soaks: what only hours, many reconnects or bad neighbours bring to light (``make soak``)."""
