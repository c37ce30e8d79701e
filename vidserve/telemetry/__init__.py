"""Telemetry: what happened, counted, and what it cost."""
