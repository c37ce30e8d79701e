"""Scheduling: which frames go to the detector, when, and in which batch. Pure; no threads."""
