"""The connections to a JVM close before it ends, in any state of their threads."""

import socket
import threading
from collections import deque
from types import SimpleNamespace

from py4j.clientserver import ClientServerConnection, JavaClient, JavaParameters, PythonParameters

from workers.spark.sessions import jvm


def test_a_connection_that_a_thread_reads_is_closed_too() -> None:
    ours, theirs = socket.socketpair()
    client = JavaClient(JavaParameters(), PythonParameters(), finalizer_deque=deque())
    connection = ClientServerConnection(JavaParameters(), PythonParameters(), SimpleNamespace(pool=None), client)
    connection.socket, connection.stream = ours, ours.makefile("rb")
    client.deque.append(connection)
    reading, lines = threading.Event(), []

    def read(stream=connection.stream) -> None:
        reading.set()
        lines.append(stream.readline())

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert reading.wait(10)
    disconnecting = threading.Thread(
        target=jvm._disconnect, args=(SimpleNamespace(_gateway_client=client, shutdown_callback_server=lambda: None),), daemon=True
    )
    disconnecting.start()
    disconnecting.join(10)

    assert not disconnecting.is_alive()
    reader.join(10)
    assert lines == [b""]
    theirs.close()
