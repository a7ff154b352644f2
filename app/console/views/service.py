"""Pages about the service itself: its workers, the findings of its doctor, and its audit log."""

from flask import Response

from app.console import calls
from app.console.formats import command, options, target_path
from app.console.pages import filtered, page, show
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


_RANK = {"problem": 0, "warning": 1, "note": 2}


@page("/doctor")
def doctor() -> Response:
    """Show the findings, the worst first."""
    answer = calls.get("/v1/doctor")
    findings = sorted(answer["findings"], key=lambda finding: _RANK.get(finding["grade"], 3))
    return show("doctor.html", here="doctor", findings=findings, cli=command("doctor"))


_FILTERS = ("actor", "action", "resource", "since", "before")


@page("/audit")
def audit() -> Response:
    """List the changes, newest first."""
    listed = filtered("/v1/audit", "entries", _FILTERS)
    cli = command("audit", *options(listed["given"]))
    return show("audit.html", here="audit", cli=cli, **listed)
