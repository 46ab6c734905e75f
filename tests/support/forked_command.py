"""`hushrec` or `hushrec-server` in a shell: `tests.support.fork_host` forks the process; this one ends when it ends.

`tests.support.forked_programs` copies this file. Errors go where the output goes.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

is_server = sys.argv[0].endswith("-server")
kind = "server" if is_server or sys.argv[1:3] == ["organiser", "serve"] else "device"  # one that has imported uvicorn
start = {
    "module": "aggregator_service.cli" if is_server else "client_sdk.cli",
    "arguments": sys.argv[1:],
    "environment": dict(os.environ),
    "folder": os.getcwd(),  # noqa: PTH109 - without further imports
}
here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
with there, socket.socket(fileno=int(os.environ[f"FORKS_{kind}"])) as host:
    socket.send_fds(host, [json.dumps(start).encode()], [1, there.fileno()])
number = int(here.recv(64))
for sent in (signal.SIGINT, signal.SIGTERM):
    signal.signal(sent, lambda received, _: os.kill(number, received))
status = int(here.recv(64))
sys.exit(status if status >= 0 else 128 - status)
