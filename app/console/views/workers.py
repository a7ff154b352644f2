"""Workers: does the drain run, and does a worker serve each target's queue?"""

from flask import Response

from app.console import calls
from app.console.formats import target_path
from app.console.pages import page, show


@page("/workers")
def workers() -> Response:
    """Show the heartbeats."""
    found = calls.get("/v1/workers")
    states = {target["arn"]: target["state"] for target in calls.targets()}
    queues = sorted(found["queues"], key=lambda queue: (queue["served"], -queue["age"]))
    return show(
        "queues.html",
        here="workers",
        flower=found["flower"],
        drain=found["drain"],
        queues=queues,
        delivering=found["delivering"],
        states=states,
        checks=calls.checks(),
        path_of=target_path,
    )
