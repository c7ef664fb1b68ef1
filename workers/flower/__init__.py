"""Paceline's additions to Flower: access control, safe remote control and the queue report."""
