"""Two modules write the delivery state (transitions and settlement_store): read from the code itself."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRANSITIONS = "app/outbox/delivery/transitions.py"
WRITERS = (TRANSITIONS, "app/outbox/delivery/settlement_store.py")
DELIVERY_STATE = ("cursors", "parked", "dead_letters")
LEASE = {"lease_token", "leased_until", "lost_leases"}
# Who else writes which columns: a lease's, those of a lease whose clock was ahead, and what a mirror has folded.
COLUMNS_OF_OTHERS = {
    "app/outbox/delivery/leases.py": LEASE,
    "app/outbox/delivery/future_times.py": LEASE,
    "app/outbox/object_versions.py": {"folded"},
}
WRITES_SQL = re.compile(rf"\b(UPDATE|INTO|DELETE FROM|MERGE INTO) +({'|'.join(DELIVERY_STATE)})\b", re.IGNORECASE)


def writes(source: str) -> Iterator[tuple[str, frozenset[str]]]:
    """The tables of the delivery state that a module writes, and for an update that names them the columns."""
    if not any(table in source.lower() for table in DELIVERY_STATE):
        return
    tree = ast.parse(source)
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from ((found[2].lower(), frozenset()) for found in WRITES_SQL.finditer(node.value))
        elif isinstance(node, ast.Attribute) and node.attr in ("insert", "update", "delete"):
            if isinstance(node.value, ast.Attribute) and node.value.attr in DELIVERY_STATE:
                yield node.value.attr, _columns(node, parents)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("insert", "update", "delete"):
            for table in node.args:
                if isinstance(table, ast.Attribute) and table.attr in DELIVERY_STATE:
                    yield table.attr, frozenset()


def _columns(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> frozenset[str]:
    """The columns that the statement of `node` sets, as keywords of its `values`, or in its `ordered_values`."""
    while isinstance(parents.get(node), ast.Attribute | ast.Call):
        node = parents[node]
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "values":
            return frozenset(keyword.arg or "?" for keyword in node.keywords)
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "ordered_values":
            names = [getattr(getattr(pair, "elts", [pair])[0], "attr", "?") for pair in node.args]
            return frozenset(names)
    while not isinstance(node, ast.FunctionDef | ast.Module):  # the statement has a name: `update.values(…)` follows
        node = parents[node]
    return frozenset(
        keyword.arg or "?"
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "values"
        for keyword in call.keywords
    )


def _strangers(path: str, source: str) -> list[str]:
    allowed = COLUMNS_OF_OTHERS.get(path, set())
    return [
        f"{path} writes {table} {sorted(columns)}"
        for table, columns in writes(source)
        if not (table == "cursors" and columns and columns <= allowed)
    ]


def test_two_modules_write_cursors_parked_events_and_dead_letters() -> None:
    paths = [
        path
        for folder in ("app", "workers", "spark_jobs", "bucketwire")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if str(path.relative_to(ROOT)) not in WRITERS
    ]
    strangers = [
        text for path in paths for text in _strangers(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
    ]
    assert strangers == []
    assert {table for path in WRITERS for table, _ in writes((ROOT / path).read_text())} == set(DELIVERY_STATE)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("app/x.py", "connection.execute(tables.parked.insert(), rows)"),
        ("app/x.py", "connection.execute(sa.delete(tables.dead_letters))"),
        ("app/x.py", "connection.exec_driver_sql('update cursors set position = 1')"),
        ("app/outbox/delivery/leases.py", "tables.cursors.update().where(x).values(lease_token='', position=1)"),
        ("app/outbox/delivery/leases.py", "tables.cursors.delete()"),
        ("app/outbox/delivery/leases.py", "def f():\n    one = tables.cursors.update()\n    one.values(delivered=1)"),
        ("app/outbox/delivery/leases.py", "tables.cursors.update().values({'position': 1})"),
        (
            "app/outbox/delivery/leases.py",
            "tables.cursors.update().ordered_values((c.lost_leases, 0), (c.position, 1))",
        ),
    ],
)
def test_a_stranger_would_be_found(path: str, source: str) -> None:
    assert _strangers(path, source) != []


def test_the_state_diagram_names_the_transitions() -> None:
    table = re.findall(
        r"^\| ([a-z ,]+) \|",
        ast.get_docstring(ast.parse((ROOT / TRANSITIONS).read_text())) or "",
        re.MULTILINE,
    )
    transitions = {name for row in table for name in row.split(", ")}
    [section] = [
        text.partition("```mermaid")[2].partition("```")[0]
        for path in (ROOT / "docs").rglob("*.md")
        for text in path.read_text(encoding="utf-8").split("\n## ")
        if text.startswith("An event at a target\n")
    ]
    arrows = {re.split(r",|<br/>", label)[0].strip() for label in re.findall(r"--> \w+: (.+)", section)}
    named = arrows - {"a rule names the target", "it has a limit"}
    assert named <= transitions
    assert named >= {
        "record",
        "deliver",
        "supersede",
        "park",
        "retry",
        "bury",
        "give up",
        "replay",
        "redeliver",
        "purge",
    }


def test_a_lease_is_written_by_leases() -> None:
    assert _strangers("app/outbox/delivery/leases.py", "tables.cursors.update().values(leased_until=0)") == []
