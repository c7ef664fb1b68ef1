"""Hides secret values in logs and output."""
