from __future__ import annotations

import pytest

from app.events import names
from app.events.names import ContentChange, content_change, selectors_with

# Reference §1.1, as it stands there.
OF_MINIO = [
    "s3:ObjectCreated:Put",
    "s3:ObjectCreated:Post",
    "s3:ObjectCreated:Copy",
    "s3:ObjectCreated:CompleteMultipartUpload",
    "s3:ObjectCreated:PutRetention",
    "s3:ObjectCreated:PutLegalHold",
    "s3:ObjectCreated:PutTagging",
    "s3:ObjectCreated:DeleteTagging",
    "s3:ObjectAccessed:Get",
    "s3:ObjectAccessed:Head",
    "s3:ObjectAccessed:GetRetention",
    "s3:ObjectAccessed:GetLegalHold",
    "s3:ObjectAccessed:Attributes",
    "s3:ObjectRemoved:Delete",
    "s3:ObjectRemoved:DeleteMarkerCreated",
    "s3:ObjectRemoved:NoOP",
    "s3:ObjectRemoved:DeleteAllVersions",
    "s3:LifecycleDelMarkerExpiration:Delete",
    "s3:Replication:OperationFailedReplication",
    "s3:Replication:OperationCompletedReplication",
    "s3:Replication:OperationMissedThreshold",
    "s3:Replication:OperationReplicatedAfterThreshold",
    "s3:Replication:OperationNotTracked",
    "s3:ObjectRestore:Post",
    "s3:ObjectRestore:Completed",
    "s3:ObjectTransition:Failed",
    "s3:ObjectTransition:Complete",
    "s3:Scanner:ManyVersions",
    "s3:Scanner:LargeVersions",
    "s3:Scanner:BigPrefix",
    "s3:BucketCreated:*",
    "s3:BucketRemoved:*",
]

IN_NO_AGGREGATE = {"s3:LifecycleDelMarkerExpiration:Delete", "s3:BucketCreated:*", "s3:BucketRemoved:*"}


def test_minios_names_are_those_of_the_reference() -> None:
    assert sorted(OF_MINIO) == sorted(names.MINIO)
    assert len(OF_MINIO) == 32


@pytest.mark.parametrize("name", OF_MINIO)
def test_a_name_stands_for_itself_and_is_in_its_family_only(name: str) -> None:
    assert names.is_known(name)
    assert name in names.expand(name)
    assert [family for family, members in names.AGGREGATES.items() if name in members] == (
        [] if name in IN_NO_AGGREGATE else [f"{name.rpartition(':')[0]}:*"]
    )


@pytest.mark.parametrize(
    ("aggregate", "count"),
    [
        ("s3:ObjectAccessed:*", 5),
        ("s3:ObjectCreated:*", 8),
        ("s3:ObjectRemoved:*", 4),
        ("s3:Replication:*", 11),
        ("s3:ObjectRestore:*", 3),
        ("s3:ObjectTransition:*", 2),
        ("s3:Scanner:*", 3),
        ("s3:LifecycleExpiration:*", 2),
        ("s3:ObjectTagging:*", 2),
        ("s3:ObjectLifecycle:Expiration:*", 6),
        ("s3:ObjectLifecycle:*", 9),
        ("s3:ObjectSynced:*", 6),
    ],
)
def test_an_aggregate_expands_to_known_names_of_its_family(aggregate: str, count: int) -> None:
    found = names.expand(aggregate)
    assert len(found) == count
    family = aggregate[:-1]
    families = ("s3:Replication:", "s3:ObjectSynced:")  # two names for one family of Ceph's
    assert all(names.is_known(name) for name in found)
    assert all(name.startswith(families if family in families else family) for name in found)
    assert not names.is_known(aggregate)


def test_every_event_is_asked_for_by_a_star_that_stays_a_star() -> None:
    assert names.expand("*") == {names.EVERY}


@pytest.mark.parametrize(
    "spellings",
    [
        {"s3:BucketCreated", "s3:BucketCreated:*"},
        {"s3:ObjectLifecycle:Expiration:NonCurrent", "s3:ObjectLifecycle:Expiration:Noncurrent"},
        {"s3:ObjectLifecycle:Transition:NonCurrent", "s3:ObjectLifecycle:Transition:Noncurrent"},
        {"s3:ObjectLifecycle:Expiration:AbortMultipartUpload", "s3:ObjectLifecycle:Expiration:AbortMPU"},
        {"s3:ObjectSynced:Create", "s3:Replication:Create"},
        {"s3:ObjectSynced:Delete", "s3:Replication:Delete"},
        {"s3:ObjectSynced:DeletionMarkerCreated", "s3:Replication:DeletionMarkerCreated"},
    ],
)
def test_an_event_is_asked_for_in_either_spelling(spellings: set[str]) -> None:
    for name in spellings:
        assert names.expand(name) == spellings
    assert len({content_change(name) for name in spellings}) == 1


def test_versitys_name_for_one_of_many_deletions_asks_for_deletions() -> None:
    assert names.expand("s3:ObjectRemoved:DeleteObjects") == {"s3:ObjectRemoved:Delete"}


@pytest.mark.parametrize(
    ("word", "expanded"),
    [
        ("put", {"s3:ObjectCreated:*"}),
        ("delete", {"s3:ObjectRemoved:*"}),
        ("get", {"s3:ObjectAccessed:*"}),
        ("replica", {"s3:Replication:*"}),
        ("ilm", {"s3:ObjectRestore:*", "s3:ObjectTransition:*"}),
        ("scanner", {"s3:Scanner:ManyVersions", "s3:Scanner:BigPrefix"}),
        ("s3:ObjectCreated:Put", {"s3:ObjectCreated:Put"}),
    ],
)
def test_mcs_words_stand_for_names(word: str, expanded: set[str]) -> None:
    assert set(names.shorthand(word)) == expanded
    assert all(names.expand(name) for name in names.shorthand(word))


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("s3:ObjectCreated:put", "s3:ObjectCreated:Put"),
        ("ObjectCreated:Put", "s3:ObjectCreated:Put"),
        ("s3:ObjectCreate:*", "s3:ObjectCreated:*"),
        ("s3:ObjectRemove:Delete", "s3:ObjectRemoved:Delete"),
        ("s3:*", "*"),
        ("s3:ObjectRemoved:NoOp", "s3:ObjectRemoved:NoOP"),
        ("putt", "put (s3:ObjectCreated:*)"),
        ("Put", "put (s3:ObjectCreated:*)"),
        ("delte", "delete (s3:ObjectRemoved:*)"),
    ],
)
def test_a_wrong_name_is_refused_with_the_nearest(wrong: str, nearest: str) -> None:
    with pytest.raises(names.UnknownEventName) as caught:
        names.expand(wrong)
    assert caught.value.nearest == nearest
    assert f"did you mean {nearest}?" in str(caught.value)


@pytest.mark.parametrize("wrong", ["", "zzz", "put", "x" * 100_000])
def test_what_is_near_no_name_is_refused_at_once_and_briefly(wrong: str) -> None:
    with pytest.raises(names.UnknownEventName) as caught:
        names.expand(wrong)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("name", "family", "change"),
    [
        ("s3:ObjectCreated:PostObject", "s3:ObjectCreated:*", ContentChange.CREATED),
        ("s3:ObjectCreated:put", "s3:ObjectCreated:*", ContentChange.CREATED),
        ("s3:ObjectRemoved:Deleted", "s3:ObjectRemoved:*", ContentChange.REMOVED),
        ("s3:ObjectRemoved:DeletionMarkerCreated", "s3:ObjectRemoved:*", ContentChange.DELETE_MARKER),
        ("s3:LifecycleExpiration:New", "s3:LifecycleExpiration:*", ContentChange.REMOVED),
        ("s3:ObjectLifecycle:Expiration:New", "s3:ObjectLifecycle:Expiration:*", ContentChange.NOTHING),
        ("s3:ObjectLifecycle:New", "s3:ObjectLifecycle:*", ContentChange.NOTHING),
        ("s3:ObjectAccessed:New", "s3:ObjectAccessed:*", ContentChange.NOTHING),
        ("s3:Scanner:New", "s3:Scanner:*", ContentChange.NOTHING),
        ("s3:ObjectCreated:*", "s3:ObjectCreated:*", ContentChange.CREATED),  # named by its family alone
        ("s3:ObjectRemoved:*", "s3:ObjectRemoved:*", ContentChange.REMOVED),
        ("s3:ObjectLifecycle:Expiration:*", "s3:ObjectLifecycle:Expiration:*", ContentChange.NOTHING),
        ("bucketwire:*", "", ContentChange.NOTHING),
        ("s3:New:Put", "", ContentChange.NOTHING),
        ("s3:ObjectCreated", "", ContentChange.NOTHING),
        ("bucketwire:New", "", ContentChange.NOTHING),
    ],
)
def test_an_unknown_name_belongs_to_the_family_whose_prefix_it_has(
    name: str, family: str, change: ContentChange
) -> None:
    assert not names.is_known(name)
    assert names.family_of(name) == family
    assert content_change(name) is change
    if change is not ContentChange.NOTHING:
        assert family in selectors_with(change)


@pytest.mark.parametrize("known", sorted(names.KNOWN - {name for name in names.KNOWN if name.endswith(":*")}))
def test_the_effect_of_a_known_name_is_its_own(known: str) -> None:
    changes = [change for change in ContentChange if known in selectors_with(change)]
    assert changes == ([] if content_change(known) is ContentChange.NOTHING else [content_change(known)])
