"""Writes the pages and files that are generated from the code; __main__ lists them."""
