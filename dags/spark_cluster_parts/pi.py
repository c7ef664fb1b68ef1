"""A Spark application for spark-submit that estimates pi by throwing 100,000 darts in each part."""

import random
import sys

from pyspark.sql import SparkSession

THROWS = 100_000


def hits(part: int) -> int:
    """The number of darts in one part that hit the circle."""
    dice = random.Random(part)
    return sum(dice.random() ** 2 + dice.random() ** 2 <= 1 for _ in range(THROWS))


spark = SparkSession.builder.getOrCreate()
parts = int(sys.argv[1])
found = spark.sparkContext.parallelize(range(parts), parts).map(hits).sum()
print(f"pi is about {4 * found / (parts * THROWS):.3f}")
spark.stop()
