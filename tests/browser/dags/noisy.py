"""A log with everything that makes logs hard to read: levels, groups, progress, wide lines, colors, and an error in the middle."""

import logging
import sys

from paceline import DAG, task

with DAG("noisy", schedule=None, tags=["tests"]) as noisy:

    @task(retries=0)
    def shout():
        print("::group::Read the settings")
        for name in ("region", "limit", "since"):
            print(f"{name} is set")
        print("::endgroup::")
        for done in range(0, 101, 4):
            print(f"copied {done} % of the files")
        for done in range(101):
            sys.stdout.write(f"\r{done:3d}%|{'#' * (done // 5):20}| {done}/100 [rows]")
        print()
        print("a wide line: " + " ".join(f"column_{number}={number * 7919}" for number in range(60)))
        logging.getLogger("load").warning("The file of us-east is 40 minutes late")
        print("26/11/28 03:00:01 WARN TaskSetManager: Lost task 3.0 in stage 1.0")
        print("\x1b[36mcyan\x1b[0m and plain")
        for number in range(1500):
            print(f"batch {number} has {number * 31 % 977} rows")
        try:
            raise KeyError("eu-north")
        except KeyError:
            logging.getLogger("load").exception("The region has no price list")
        for number in range(1500):
            print(f"batch {number + 1500} has {number * 37 % 977} rows")
        raise ValueError("The sum of orders is negative")

    shout()
