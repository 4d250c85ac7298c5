"""Answers from a saved run without measuring: what other settings and machines would give."""
