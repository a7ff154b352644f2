"""Which transactions that write to the outbox are repeated after a deadlock, and why the others need not be."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TOP = Path(__file__).parents[2]
FOLDERS = ("app", "workers", "spark_jobs", "bucketwire")
_WRITE = {"writing", "committing", "in_one_trip"}
_DECORATOR, _FUNCTION = "repeated_after_deadlock", "after_deadlocks"

_NEXT_TICK = "beat has it done again some seconds later, and until then nothing waits for it"
ELSEWHERE = {
    "app/outbox/audit.py purge": _NEXT_TICK,
    "app/outbox/delivery/future_times.py": _NEXT_TICK,
    "app/outbox/delivery/transitions.py HeadRepair._repair": _NEXT_TICK,
    "app/outbox/upkeep.py forget_probes": _NEXT_TICK,
    "app/outbox/upkeep.py record_heartbeat": _NEXT_TICK,
    "app/outbox/log/arrivals.py catch_up": _NEXT_TICK,
    "app/outbox/processes.py record_process": "the next heartbeat is soon",
    "app/outbox/processes.py end_process": "a process whose end is not recorded falls silent",
    "app/outbox/processes.py forget_ended": _NEXT_TICK,
    "app/outbox/upkeep.py begin_all": "the next run of the task records it",
    "app/outbox/upkeep.py _record": "the next run of the task records it",
    "app/outbox/log/append.py Log._in_one_trip": "as the next one",
    "app/outbox/log/append.py Log._under_lock": "Log._record repeats it with what it reads before",
    "app/outbox/log/group_commit.py check_writable": "asks whether the database takes anything; an error is an answer",
    "app/outbox/log/retention.py _purge_batch": _NEXT_TICK,
    "app/outbox/notices.py NoticeRecorder.record": _NEXT_TICK,
    "app/outbox/refusals.py forget": _NEXT_TICK,
    "app/outbox/registry.py Registry.at_once": "those who change something within it are repeated as a whole",
    "app/outbox/series.py take_sample": _NEXT_TICK,
    "app/outbox/tokens.py _Uses._write": "the last use of a token is for people, and the next use records it",
    "app/outbox/object_versions.py ObjectVersions._close_gaps": "the next turn of a worker closes them",
    "app/outbox/object_versions.py drop_unused": _NEXT_TICK,
    "workers/telemetry/attempt_recorder.py AttemptRecorder._insert": "what is not recorded is kept for the next time",
    "workers/drain.py": _NEXT_TICK,
}


def _transactions(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Each place that begins one: the functions and classes around it, and whether one of them is repeated."""
    repeated = {
        name.id
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == _FUNCTION
        for name in ast.walk(ast.Tuple(elts=call.args))
        if isinstance(name, ast.Name)
    }

    def within(node: ast.AST, around: tuple[ast.FunctionDef | ast.ClassDef, ...]) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute) and child.func.attr in _WRITE:
                of_functions = [each for each in around if isinstance(each, ast.FunctionDef)]
                decorators = [one for each in of_functions for one in each.decorator_list]
                is_repeated = any(isinstance(one, ast.Name) and one.id == _DECORATOR for one in decorators)
                is_given = any(each.name in repeated for each in of_functions)
                yield ".".join(each.name for each in around), is_repeated or is_given
            inner = (*around, child) if isinstance(child, ast.FunctionDef | ast.ClassDef) else around
            yield from within(child, inner)

    return within(tree, ())


def test_every_transaction_that_writes_is_repeated_after_a_deadlock_or_needs_it_not() -> None:
    left, found = dict(ELSEWHERE), 0
    forgotten = []
    for path in (path for folder in FOLDERS for path in sorted((TOP / folder).rglob("*.py"))):
        name = str(path.relative_to(TOP))
        for place, is_repeated in _transactions(ast.parse(path.read_text())):
            found += 1
            known = {name, f"{name} {place}"} & ELSEWHERE.keys()
            if not is_repeated and not known:
                forgotten.append(f"{name} {place}")
            if not is_repeated:
                for key in known:
                    left.pop(key, None)
    assert forgotten == [], f"decorate these by {_DECORATOR}, or say here why not"
    assert left == {}, "these are repeated, or gone"
    assert found > 60
