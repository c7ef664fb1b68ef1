"""`paceline standalone`: runs a stack on this machine until Ctrl-C."""

import threading

import click

from scheduler.cli import options, output


@click.command()
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Workers for the default queue, in addition to the Spark worker.",
)
def standalone(workers: int) -> None:
    """Run PostgreSQL, Redis, two schedulers, workers, a waiter, a web process and Flower until Ctrl-C or SIGTERM.

    Set PACELINE_DATABASE_URL and PACELINE_BROKER_URL to use other servers instead of the embedded ones. All files are below
    PACELINE_HOME.
    """
    from rich.text import Text

    from scheduler.embedded import stack
    from scheduler.process import hardening
    from scheduler.testing import folder

    hardening.close()
    settings = options.settings()
    screen = output.console()
    with stack.until_signalled(output.say):
        output.say(f"Starting on {settings.home} ...")
        wanted = stack.default_workers(settings, workers=workers)
        with stack.running_stack(settings, say=output.say, workers=wanted, web=True) as running:
            rows = [
                {"process": name, "pid": running.supervisor.pid(name), "log": str(running.supervisor.log(name))}
                for name in running.supervisor.names()
            ]
            output.table(rows, ["process", "pid", "log"], empty="Nothing runs.")
            where = {
                "DAG files": settings.dags_folder,
                "web": running.web_url,
                "web login, once": running.web_link,
                **({"web account": f"admin  {running.web_password}"} if running.web_password else {}),
                "flower": running.flower_url,
                "flower login": (running.flower_login or "set by the environment").replace(":", "  "),
                "home": f"{settings.home}  (PACELINE_HOME={settings.home} paceline dags list)",
            }
            output.facts({name: str(value) for name, value in where.items()})
            if left := stack.wait_for_dags(settings, folder.listed(settings) or []):
                output.say(f"{output.count(left, 'DAG file')} not parsed yet: `paceline dags errors` shows errors later.")
            screen.print(Text("Ready. Ctrl-C ends everything."))
            try:
                threading.Event().wait()
            finally:
                output.say("Ending: workers first, the servers last ...")
