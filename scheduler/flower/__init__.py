"""What Paceline adds to Flower: access control, safe remote control, and the queue report."""
