"""The limits on active task instances in SQL, and the free capacity under each."""
