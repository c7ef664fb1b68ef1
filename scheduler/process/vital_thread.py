"""A thread without which its process only seems to work: an error that ends it ends the process."""

import logging
import os
import threading

log = logging.getLogger("paceline")


class VitalThread(threading.Thread):
    """A daemon thread for the lifetime of its process. A subclass defines `work`; without one, `target` is called.

    After an error that `work` does not handle, the process exits with code 1, so that its service manager starts it again and
    others take over. A process that has lost a duty would go on looking healthy.
    """

    def run(self) -> None:
        try:
            self.work()
        except BaseException:
            log.critical("The thread %s ended with an error, so this process ends.", self.name, exc_info=True)
            logging.shutdown()
            os._exit(1)

    def work(self) -> None:
        super().run()
