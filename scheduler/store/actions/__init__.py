"""The changes that people make: clear, mark, delete, backfills, pools."""
