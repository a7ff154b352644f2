"""Pages about the service itself: its processes, the findings of its doctor, and its audit log."""

from flask import Response

from app.console import calls
from app.console.findings import ATTENTION, is_about_processes, lines
from app.console.formats import command, options, target_path
from app.console.pages import filtered, page, show, visitor
from app.release import VERSION


@page("/processes")
def processes() -> Response:
    """Show the processes, those that are missed or run another version first, and the queues."""
    found = calls.get("/v1/processes")
    who = visitor()
    findings = [one for one in calls.get("/v1/doctor")["findings"] if is_about_processes(one["subject"])]
    bad = [one for one in findings if one["grade"] in ATTENTION]
    states = {target["arn"]: target["state"] for target in calls.targets()}
    return show(
        "process_list.html",
        here="processes",
        flower=found["flower"],
        drain=found["drain"],
        processes=sorted(
            found["processes"], key=lambda one: (one["state"] == "running", one["version"] == VERSION, one["name"])
        ),
        version=VERSION,
        strangers=found["other_processes"],
        queues=sorted(found["queues"], key=lambda queue: (queue["served"], -queue["age"])),
        states=states,
        checks=calls.checks()
        | {one["subject"]: {"ok": one["grade"] == "ok"} for one in findings if one["subject"] == "broker"},
        findings=lines(bad, may_change=who.may_change, sees_all=not who.is_limited),
        path_of=target_path,
    )


@page("/doctor")
def doctor() -> Response:
    """Show the findings."""
    who, found = visitor(), calls.get("/v1/doctor")["findings"]
    shown = lines(found, may_change=who.may_change, sees_all=not who.is_limited)
    return show("doctor.html", here="doctor", findings=shown, cli=command("doctor"))


_FILTERS = ("actor", "action", "resource", "since", "before")


@page("/audit")
def audit() -> Response:
    """List the changes, newest first."""
    listed = filtered("/v1/audit", "entries", _FILTERS)
    cli = command("audit", *options(listed["given"]))
    return show("audit.html", here="audit", cli=cli, **listed)
