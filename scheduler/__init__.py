"""The engine: it decides, dispatches and recovers. DAG files import from `paceline`."""


def __getattr__(name: str) -> object:
    """ImportError for a name that authors imported from here before there was a package `paceline`."""
    import paceline

    if name in paceline.__all__:
        raise ImportError(f"DAG files import from paceline: write `from paceline import {name}`.", name=__name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
