"""`paceline web`: starts a web process."""

import click

from scheduler.cli import options, output
from scheduler.process import hardening


@click.command()
def web() -> None:
    """Start a web process, which serves the web UI and the REST API. Any number can run at once.

    The first start creates the account admin and prints its password once. On SIGTERM or Ctrl-C, open requests end first.
    """
    # Before the imports below, which take a second, and in which its user's programs could read the environment.
    hardening.close()
    from scheduler.api import serve

    settings = options.settings()
    options.refuse_taken_port("web", settings.web.address, settings.web.port)
    click.get_current_context().exit(serve.run(settings, say=output.say))
