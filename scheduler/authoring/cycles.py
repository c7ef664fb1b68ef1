"""Cycles in a graph of task IDs."""

from collections.abc import Iterable, Iterator, Mapping


def find_cycle(downstream: Mapping[str, Iterable[str]]) -> list[str]:
    """The path of one cycle, with its first ID again at the end; empty if there is none. Equal graphs give equal paths."""
    finished: set[str] = set()
    for root in downstream:
        if root in finished:
            continue
        path, on_path = [root], {root}
        branches: list[Iterator[str]] = [iter(sorted(downstream[root]))]
        while branches:
            child = next(branches[-1], None)
            if child is None:
                branches.pop()
                done = path.pop()
                on_path.remove(done)
                finished.add(done)
            elif child in on_path:
                return [*path[path.index(child) :], child]
            elif child not in finished:
                path.append(child)
                on_path.add(child)
                branches.append(iter(sorted(downstream[child])))
    return []
