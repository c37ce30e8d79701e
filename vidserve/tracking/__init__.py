"""Tracking: the boxes of every instant from the detections of some."""
