"""The live objects of a warm JVM, counted by class."""

import re
from collections import Counter
from typing import Any

from support.waiting import eventually
from workers.spark.sessions.session_pool import WarmJvm

#: The heap is settled when a garbage collection frees fewer bytes than this.
LITTLE = 20_000
#: The key under which the bytes of all objects are counted.
BYTES = "bytes"


def settled(warm: WarmJvm) -> Counter[str]:
    """The number of objects by class, and their bytes, once garbage collections free little.

    The first collections do not free everything: after each one, Spark drops the blocks of freed objects, and idle threads end.
    """
    found = [_objects(warm)]

    def is_settled() -> bool:
        found.append(_objects(warm))
        return len(found) > 3 and found[-4][BYTES] - found[-1][BYTES] < LITTLE

    eventually(is_settled, timeout=60, interval=0.5)
    return found[-1]


def _objects(warm: WarmJvm) -> Counter[str]:
    """The same after one garbage collection."""
    found: Counter[str] = Counter()
    for line in _histogram(warm).splitlines():
        if row := re.match(r" *\d+: +(\d+) +\d+ +(\S+)", line):
            found[row[2]] += int(row[1])
        elif total := re.match(r"Total +\d+ +(\d+)", line):
            found[BYTES] = int(total[1])
    return found


def _histogram(warm: WarmJvm) -> str:
    """The output of `jcmd PID GC.class_histogram`, without jcmd, which only a JDK has."""
    java = warm.classes.java.lang

    def array(kind: Any, *items: Any) -> Any:
        array = warm.jvm.gateway.new_array(kind, len(items))
        for number, item in enumerate(items):
            array[number] = item
        return array

    server = java.management.ManagementFactory.getPlatformMBeanServer()
    # By reflection, because the class of the server is not public.
    invoke = next(each for each in java.Class.forName("javax.management.MBeanServer").getMethods() if each.getName() == "invoke")
    name = warm.classes.javax.management.ObjectName("com.sun.management:type=DiagnosticCommand")
    parameters, signature = array(java.Object, array(java.String)), array(java.String, "[Ljava.lang.String;")
    return str(invoke.invoke(server, array(java.Object, name, "gcClassHistogram", parameters, signature)))
