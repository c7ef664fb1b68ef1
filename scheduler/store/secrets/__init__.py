"""Encrypted variables and connections."""
