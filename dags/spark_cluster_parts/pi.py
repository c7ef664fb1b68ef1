"""An application of its own, for spark-submit: throws so many times 100,000 darts."""

import random
import sys

from pyspark.sql import SparkSession

THROWS = 100_000


def hits(part: int) -> int:
    """How many of the darts of one part hit the circle."""
    dice = random.Random(part)
    return sum(dice.random() ** 2 + dice.random() ** 2 <= 1 for _ in range(THROWS))


spark = SparkSession.builder.getOrCreate()
parts = int(sys.argv[1])
found = spark.sparkContext.parallelize(range(parts), parts).map(hits).sum()
print(f"pi is about {4 * found / (parts * THROWS):.3f}")
spark.stop()
