"""Have a RabbitMQ do what rabbitmqctl would, without an Erlang of its own."""

from __future__ import annotations

import os
import subprocess

from tests import services


def evaluated(server: services.RabbitMQ, expression: str) -> str:
    """What an Erlang expression yields within the server; rabbitmqctl would start an Erlang of its own for it."""
    cookie = (server.folder / ".erlang.cookie").read_text()
    argv = ["erl_call", "-n", server.env()["RABBITMQ_NODENAME"], "-c", cookie, "-e"]
    env = {"PATH": os.environ["PATH"], "ERL_EPMD_PORT": str(server.epmd_port)}
    done = subprocess.run(
        argv, input=f"{expression}.\n", env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("{ok, "), done.stdout
    return done.stdout.removeprefix("{ok, ").removesuffix("}")
