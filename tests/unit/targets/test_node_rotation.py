"""Which node of a cluster is connected to."""

from __future__ import annotations

import pytest

from workers.targets.tcp import NodeRotation


class Nodes:
    """Nodes of which some are down; those that were asked for a connection are listed."""

    def __init__(self, *down: str) -> None:
        self.down = set(down)
        self.asked = ""

    def connect(self, node: str) -> str:
        self.asked += node
        if node in self.down:
            raise ConnectionRefusedError(node)
        return node


def test_the_same_node_is_used_as_long_as_it_is_there_and_then_the_next() -> None:
    nodes, rotation = Nodes("a"), NodeRotation("abc", 60)
    assert [rotation.connect(nodes.connect, OSError) for _ in range(2)] == ["b", "b"]
    nodes.down = {"b", "c"}
    assert rotation.connect(nodes.connect, OSError) == "a"
    assert nodes.asked == "abb" + "bca"


def test_the_error_of_the_last_node_is_raised_when_all_are_down() -> None:
    nodes, rotation = Nodes(*"abc"), NodeRotation("abc", 60)
    with pytest.raises(ConnectionRefusedError, match="c"):
        rotation.connect(nodes.connect, OSError)
    assert nodes.asked == "abc"


def test_after_the_timeout_the_next_node_is_left_for_the_next_attempt() -> None:
    nodes, rotation = Nodes(*"ab"), NodeRotation("abc", 0)
    for node in "ab":
        with pytest.raises(ConnectionRefusedError, match=node):
            rotation.connect(nodes.connect, OSError)
    assert rotation.connect(nodes.connect, OSError) == "c"


def test_an_error_that_is_none_of_a_node_leaves_it_the_first() -> None:
    nodes, rotation = Nodes("a"), NodeRotation("ab", 60)
    with pytest.raises(ConnectionRefusedError):
        rotation.connect(nodes.connect, KeyError)
    with pytest.raises(ConnectionRefusedError):
        rotation.connect(nodes.connect, KeyError)
    assert nodes.asked == "aa"
