"""What a config needs, and how much more would fit: measured costs, then simulation."""
