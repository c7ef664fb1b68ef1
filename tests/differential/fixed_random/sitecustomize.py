"""Makes the choices of `random` the same in every process that has this folder on PYTHONPATH."""

import random

random.random = lambda: 0.25
random.choice = lambda seq: seq[0]
random.choices = lambda population, *_, k=1, **__: [population[0]] * k
random.randint = lambda a, b: a
