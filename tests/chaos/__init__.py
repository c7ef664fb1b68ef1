"""Chaos: a stack of real processes under seeded faults, with a monitor, and with a checker at the end."""
