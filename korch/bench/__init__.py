"""Timing of engines against each other: one process each, in alternating bursts, the idle ones stopped."""
