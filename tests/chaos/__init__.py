"""Chaos: a stack of real processes under seeded faults, watched all the time and judged by the ledger at the end."""
