"""Measures Paceline beside other durable engines and task queues: `python -m bench peers --engines NAME,NAME`."""
