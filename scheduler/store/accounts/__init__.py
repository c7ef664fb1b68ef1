"""Accounts of web users: passwords, roles, sessions and tokens, and the audit log of requested changes."""
