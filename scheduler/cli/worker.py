"""`paceline worker`: takes task instances from queues and runs them."""

import click

from scheduler.cli import options


@click.command()
@click.option("-q", "--queues", metavar="A,B", help="Queues to take work from; the default queue if left out.")
@click.option("-c", "--concurrency", type=click.IntRange(1, 1024), help="Task instances run at once.")
@click.option("--name", help="Name of this worker, unique among those that run; made from the host name if left out.")
def worker(queues: str | None, concurrency: int | None, name: str | None) -> None:
    """Start a worker. SIGTERM and Ctrl-C let it end its tasks within worker.grace_sec."""
    settings = options.settings()
    names = _queues(settings.core.default_queue if queues is None else queues)
    from workers import app

    code = app.run(settings, queues=names, concurrency=concurrency or settings.worker.concurrency, name=name)
    click.get_current_context().exit(code)


def _queues(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise click.BadParameter(f"{text!r} holds an empty name; write the queues as a,b.", param_hint="'-q'")
    return list(dict.fromkeys(names))
