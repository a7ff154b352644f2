from app.config.arn import TargetId
from app.config.formats.environment import variable
from app.config.target_settings import from_environ, invalid_settings, load
from app.config.targets.redis import RedisSettings

N = "MINIO_NOTIFY_"


def redis(name: str) -> TargetId:
    return TargetId("redis", name)


def test_nothing_is_no_target() -> None:
    assert from_environ({"PATH": "/bin", "MINIO_ROOT_USER": "x"})[:2] == ({}, [])


def test_an_enable_variable_makes_a_target_and_its_name() -> None:
    found = from_environ(
        {
            f"{N}REDIS_ENABLE": "on",
            f"{N}REDIS_ADDRESS": " h:1 ",
            f"{N}REDIS_KEY": "k",
            f"{N}REDIS_ENABLE_PRIMARY": "on",
            f"{N}REDIS_ADDRESS_PRIMARY": "h:2",
            f"{N}REDIS_ENABLE_Mixed_case": "off",
            f"{N}POSTGRES_ENABLE_1": "true",
            f"{N}POSTGRES_CONNECTION_STRING_1": "host=db",
            f"{N}WEBHOOK_ENABLE_a.b-c": "on",
        }
    )
    assert found.problems == []
    assert found.targets == {
        redis("_"): {"enable": "on", "address": "h:1", "key": "k"},
        redis("PRIMARY"): {"enable": "on", "address": "h:2"},
        redis("Mixed_case"): {"enable": "off"},
        TargetId("postgresql", "1"): {"enable": "true", "connection_string": "host=db"},
        TargetId("webhook", "a.b-c"): {"enable": "on"},
    }


def test_of_several_readings_the_longest_key_of_a_target_that_there_is_counts() -> None:
    both = {f"{N}REDIS_ENABLE": "on", f"{N}REDIS_ENABLE_CA": "on", f"{N}REDIS_TLS_CA": "/ca"}
    assert from_environ(both).targets == {redis("_"): {"enable": "on", "tls_ca": "/ca"}, redis("CA"): {"enable": "on"}}
    named = {f"{N}REDIS_ENABLE_CA": "on", f"{N}REDIS_TLS_CA": "on"}
    assert from_environ(named).targets == {redis("CA"): {"enable": "on", "tls": "on"}}


def test_names_may_contain_underscores_and_the_names_of_keys() -> None:
    names = ("QUEUE_DIR", "A_B", "B", "KEY_A_B")
    environ = {f"{N}REDIS_ENABLE_{name}": "on" for name in names}
    environ |= {f"{N}REDIS_QUEUE_DIR_{name}": f"/{name}" for name in names}
    environ |= {f"{N}REDIS_KEY_{name}": name for name in names}
    assert from_environ(environ)[:2] == (
        {redis(name): {"enable": "on", "queue_dir": f"/{name}", "key": name} for name in names},
        [],
    )


def test_an_empty_variable_is_no_variable() -> None:
    found = from_environ({f"{N}REDIS_ENABLE_X": " ", f"{N}REDIS_ENABLE_Y": "on", f"{N}REDIS_PASSWORD_Y": ""})
    assert found[:2] == ({redis("Y"): {"enable": "on"}}, [])


def test_other_variables_alone_make_no_target_and_are_told() -> None:
    found = from_environ({f"{N}REDIS_PASSWORD_Y": "hunter2", f"{N}REDIS_ADDRESS": "h"})
    assert found.targets == {}
    assert [str(problem) for problem in found.problems] == [
        f"{N}REDIS_PASSWORD_Y: belongs to no target; set {N}REDIS_ENABLE_Y=on, or did you mean PASSWORD?",
        f"{N}REDIS_ADDRESS: belongs to no target; set {N}REDIS_ENABLE=on",
    ]


def test_an_unknown_key_breaks_its_own_target_only() -> None:
    environ = {
        f"{N}REDIS_ENABLE_A_B": "on",
        f"{N}REDIS_ADRESS_A_B": "h",
        f"{N}REDIS_ENABLE_B": "on",
        f"{N}REDIS_ADDRESS_B": "h",
        f"{N}REDIS_KEY_B": "k",
        f"{N}WEBHOOK_ENABLE": "on",
        f"{N}WEBHOOK_ENDPONT": "http://h",
        f"{N}POSTGRES_ENABLE": "perhaps",
    }
    found = from_environ(environ)
    assert found.problems == []
    assert found.targets[redis("A_B")] == {"enable": "on", "adress": "h"}
    problems = invalid_settings(found.targets)
    assert set(problems) == {redis("A_B"), TargetId("webhook", "_"), TargetId("postgresql", "_")}
    assert "adress: is not a known setting; did you mean address?" in str(problems[redis("A_B")])
    assert "endpont: is not a known setting; did you mean endpoint?" in str(problems[TargetId("webhook", "_")])
    assert "neither on nor off" in str(problems[TargetId("postgresql", "_")])
    assert load("redis", found.targets[redis("B")]).enable


def test_an_unknown_type_is_told_with_the_nearest() -> None:
    found = from_environ({f"{N}RADIS_ENABLE": "on", f"{N}REDIS_ENABLE": "on"})
    assert list(found.targets) == [redis("_")]
    assert [str(problem) for problem in found.problems] == [
        f"{N}RADIS_ENABLE: is of an unknown target type; did you mean REDIS?"
    ]


def test_a_name_that_cannot_be_is_told_once() -> None:
    found = from_environ({f"{N}REDIS_ENABLE_A:B": "on", f"{N}REDIS_KEY_A:B": "k", f"{N}REDIS_ENABLE_C": "on"})
    assert list(found.targets) == [redis("C")]
    assert [problem.key for problem in found.problems] == [f"{N}REDIS_ENABLE_A:B"]


def test_a_variable_of_a_target_that_is_not_enabled_touches_no_other() -> None:
    found = from_environ({f"{N}REDIS_ENABLE": "on", f"{N}REDIS_ADDRESS_Y": "h"})
    assert found.targets == {redis("_"): {"enable": "on"}}
    assert [problem.key for problem in found.problems] == [f"{N}REDIS_ADDRESS_Y"]


def test_the_variable_of_a_key_is_known() -> None:
    assert variable(RedisSettings, "queue_dir") == f"{N}REDIS_QUEUE_DIR"
    assert variable(RedisSettings, "queue_dir", "a_B") == f"{N}REDIS_QUEUE_DIR_a_B"
