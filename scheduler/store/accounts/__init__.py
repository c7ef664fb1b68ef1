"""Web accounts: who may log in, with which rights, and what was asked for."""
