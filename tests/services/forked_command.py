"""The command `bucketwire` of the tests: it has a fork server run the words that it is given, and ends as that ends.

`python -IS forked_command.py SOCKET WORD …`; it imports little, since it is started for each command.
"""

import json
import os
import socket
import sys


def main() -> int:
    place, *words = sys.argv[1:]
    request = json.dumps({"argv": ["app.cli", *words], "env": dict(os.environ), "folder": os.getcwd()})  # noqa: PTH109
    reading, writing = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(place)
        socket.send_fds(server, [request.encode()], [0, 1, 2, writing])
        os.close(writing)
        with open(reading, "rb") as told:  # noqa: PTH123 - a descriptor
            _pid, code = told.read().split()  # nothing, if the fork server has ended
    return int(code) if int(code) >= 0 else 128 - int(code)


sys.exit(main())
