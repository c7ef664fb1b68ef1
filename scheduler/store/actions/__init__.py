"""Changes that people make: clear, mark, delete, backfills, pools."""
