import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from app.config.arn import TargetId
from app.config.declared_types import TYPES
from app.config.errors import REDACTED, BadSettings, BadValue
from app.config.secrets import Sealer, key_file
from app.config.targets.redis import RedisSettings

OLD, NEW = Fernet.generate_key().decode(), Fernet.generate_key().decode()
CACHE = TargetId("redis", "cache")
VALUES = {"address": "h:1", "key": "k", "password": "hunter2", "user": ""}


def test_a_sealed_text_opens_again_and_does_not_show() -> None:
    sealer = Sealer([OLD])
    sealed = sealer.seal("hunter2")
    assert sealed.startswith("enc:")
    assert "hunter2" not in sealed
    assert sealed != sealer.seal("hunter2")
    assert sealer.unseal(sealed) == "hunter2"
    assert sealer.unseal("not sealed") == "not sealed"


def test_keys_can_be_rotated() -> None:
    by_old = Sealer([OLD]).seal("hunter2")
    both = Sealer([NEW, OLD])
    assert both.unseal(by_old) == "hunter2"
    assert Sealer([NEW]).unseal(both.seal(both.unseal(by_old))) == "hunter2"


def test_a_key_that_is_missing_is_looked_for_again_and_then_known() -> None:
    asked: list[list[str]] = [[], [NEW, OLD]]
    sealer = Sealer([OLD], lambda: asked.pop(0))
    by_new, by_old = Sealer([NEW]).seal("hunter2"), Sealer([OLD]).seal("swordfish")
    assert sealer.unseal(by_old) == "swordfish"
    with pytest.raises(BadValue, match="not among"):  # there are none to be had just then, and those known stay
        sealer.unseal(by_new)
    assert sealer.unseal(by_old) == "swordfish"
    assert sealer.unseal(by_new) == "hunter2"
    assert (sealer.unseal(by_new), sealer.unseal(by_old)) == ("hunter2", "swordfish")
    assert asked == []
    assert Sealer([NEW]).unseal(sealer.seal("x")) == "x", "what comes next is sealed with the newest"


def test_only_what_is_not_shown_is_sealed() -> None:
    sealer = Sealer([OLD])
    sealed = sealer.seal_all(RedisSettings, VALUES)
    assert {name for name, text in sealed.items() if text != VALUES[name]} == {"password"}
    assert sealer.unseal_all(CACHE, sealed) == VALUES


@pytest.mark.parametrize(
    ("type_name", "values"),
    [
        ("redis", {"passwrd": "hunter2"}),
        ("webhook", {"endpoint": "http://me:hunter2@h/"}),
        ("webhook", {"endpoint": "https://hooks.slack.com/services/T0/hunter2"}),
        ("webhook", {"endpoint": "http://h/?k=hunter2"}),
        ("webhook", {"endpoint": "https://ntfy.sh/hunter2"}),
        ("webhook", {"endpoint": "http://hunter2/"}),
        ("postgresql", {"connection_string": "password=hunter2"}),
        ("unheard", {"anything": "hunter2"}),
        ("redis", {"comment": "enc:hunter2"}),
    ],
)
def test_what_may_hold_a_secret_is_sealed(type_name: str, values: dict[str, str]) -> None:
    sealer = Sealer([OLD])
    sealed = sealer.seal_all(TYPES.get(type_name), values)
    assert "hunter2" not in str(sealed)
    assert sealer.unseal_all(type_name, sealed) == values


def test_a_reference_is_kept_as_it_is() -> None:
    values = {"password": "file:/run/secrets/redis"}
    assert Sealer([OLD]).seal_all(RedisSettings, values) == values


def test_a_lost_key_is_told_with_target_key_and_way_out() -> None:
    sealed = Sealer([OLD]).seal_all(RedisSettings, VALUES)
    with pytest.raises(BadSettings) as caught:
        Sealer([NEW]).unseal_all(CACHE, sealed)
    assert str(caught.value) == (
        f"redis:cache: password: {REDACTED} was sealed with a key that is not among BUCKETWIRE_SECRET_KEYS; "
        "put the old key back at the end of the list, or set this secret again"
    )


@pytest.mark.parametrize("keys", [[], [""], ["short"], [OLD, "x"], [OLD + "é"]])
def test_what_is_no_key_is_refused(keys: list[str]) -> None:
    with pytest.raises(BadValue):
        Sealer(keys)


def test_a_key_file_is_made_once_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "var" / "secret.key"
    key = key_file(path)
    assert key_file(path) == key
    assert Sealer([key]).unseal(Sealer([key]).seal("x")) == "x"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["secret.key"]


def test_processes_that_start_at_once_have_the_same_key(tmp_path: Path) -> None:
    path = tmp_path / "secret.key"
    go = tmp_path / "go"
    # Each waits for the file `go`, so that all of them look for the key in the same moment.
    script = (
        "import pathlib, sys\n"
        "from app.config.secrets import key_file\n"
        "print('ready', flush=True)\n"
        "while not pathlib.Path(sys.argv[2]).exists(): pass\n"
        "print(key_file(pathlib.Path(sys.argv[1])))\n"
    )
    command = [sys.executable, "-c", script, str(path), str(go)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    try:
        for each in started:
            assert each.stdout
            assert each.stdout.readline() == "ready\n"
        go.touch()
        keys = {each.communicate(timeout=60)[0].strip() for each in started}
    finally:
        for each in started:
            each.kill()
            each.wait()
            if each.stdout:
                each.stdout.close()
    assert keys == {path.read_text().strip()}


def test_a_key_file_that_cannot_be_trusted_is_refused(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open.key"
    open_to_all.write_text(OLD)
    open_to_all.chmod(0o644)
    with pytest.raises(BadValue, match="can be read by others"):
        key_file(open_to_all)
    broken = tmp_path / "broken.key"
    broken.touch(mode=0o600)
    with pytest.raises(BadValue, match="not a secret key"):
        key_file(broken)
    with pytest.raises(BadValue, match="cannot be used"):
        key_file(broken / "secret.key")
