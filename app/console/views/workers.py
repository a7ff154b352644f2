"""Workers: who is there and does what, does the drain run, and does a worker serve each target's queue?"""

from flask import Response

from app.console import calls
from app.console.formats import target_path
from app.console.pages import page, show
from app.release import VERSION


@page("/workers")
def workers() -> Response:
    """Show the workers, those that fell silent or run another version first, and the queues."""
    found = calls.get("/v1/workers")
    states = {target["arn"]: target["state"] for target in calls.targets()}
    return show(
        "worker_list.html",
        here="workers",
        flower=found["flower"],
        drain=found["drain"],
        workers=sorted(found["workers"], key=lambda one: (one["alive"], one["version"] == VERSION, one["name"])),
        version=VERSION,
        strangers=found["other_processes"],
        queues=sorted(found["queues"], key=lambda queue: (queue["served"], -queue["age"])),
        states=states,
        checks=calls.checks(),
        path_of=target_path,
    )
