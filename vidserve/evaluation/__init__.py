"""Evaluation: the tracker on recorded sequences with truth, online as in the daemon."""
