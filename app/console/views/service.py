"""Pages about the service itself: its workers, the findings of its doctor, and its audit log."""

from flask import Response

from app.console import calls
from app.console.formats import command, options, target_path
from app.console.pages import filtered, page, show
from app.release import VERSION

ATTENTION = ("problem", "warning")  # grades of findings that need somebody
OF_WORKERS = ("broker", "drain", "versions", "workers")  # subjects of findings that the page of the workers is about


@page("/workers")
def workers() -> Response:
    """Show the workers, those that fell silent or run another version first, and the queues."""
    found = calls.get("/v1/workers")
    findings = [one for one in calls.get("/v1/doctor")["findings"] if one["subject"] in OF_WORKERS]
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
        checks=calls.checks()
        | {one["subject"]: {"ok": one["grade"] == "ok"} for one in findings if one["subject"] == "broker"},
        findings=[one for one in findings if one["grade"] in ATTENTION],
        path_of=target_path,
    )


@page("/doctor")
def doctor() -> Response:
    """Show the findings."""
    return show("doctor.html", here="doctor", findings=calls.get("/v1/doctor")["findings"], cli=command("doctor"))


_FILTERS = ("actor", "action", "resource", "since", "before")


@page("/audit")
def audit() -> Response:
    """List the changes, newest first."""
    listed = filtered("/v1/audit", "entries", _FILTERS)
    cli = command("audit", *options(listed["given"]))
    return show("audit.html", here="audit", cli=cli, **listed)
