"""The console of an API within the test's process: a browser without scripts, and the log that it looks at."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from flask import Flask
from jinja2.bccache import Bucket, BytecodeCache
from werkzeug.test import Client, TestResponse

from app.config.settings import Settings
from app.console.session import COOKIE
from app.outbox.engine.database import Database
from app.server.application import create_app
from tests.support.builders import migrated

KEY = Fernet.generate_key().decode()
ADMIN, READ, INGEST = (f"{scope}-0123456789abcdef" for scope in ("admin", "read", "ingest"))
TOKENS = f"ops:admin:{ADMIN},viewer:read:{READ},minio:ingest:{INGEST}"


_BLOCKS = frozenset({"dd", "div", "dt", "li", "p", "td", "th"})


class _Parsed(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        self.text += " " if tag in _BLOCKS else ""

    def handle_data(self, data: str) -> None:
        self.text += data


@dataclass
class Page:
    """One answer of the console."""

    response: TestResponse
    tags: list[tuple[str, dict[str, str]]] = field(init=False)
    text: str = field(init=False)

    def __post_init__(self) -> None:
        parsed = _Parsed()
        parsed.feed(self.response.get_data(as_text=True))
        self.tags, self.text = parsed.tags, re.sub(r"\s+", " ", parsed.text)
        self.response.close()  # of a file, too

    @property
    def status(self) -> int:
        return self.response.status_code

    @property
    def location(self) -> str:
        return self.response.headers.get("Location", "")

    def all(self, tag: str) -> list[dict[str, str]]:
        """The attributes of every tag of a kind."""
        return [attributes for name, attributes in self.tags if name == tag]

    def values(self, name: str) -> list[str]:
        """The values of the inputs of this name."""
        return [given.get("value", "") for given in self.all("input") if given.get("name") == name]

    @property
    def text_lines(self) -> list[str]:
        """The lines of a file, with their ends."""
        return self.response.get_data(as_text=True).splitlines(keepends=True)

    @property
    def form(self) -> str:
        """What a form of this page sends back to show that it is of this session."""
        return self.values("form")[0]

    @property
    def actions(self) -> set[str]:
        """Where the forms of this page that change something are sent to."""
        return {given["action"] for given in self.all("form") if given.get("method") == "post"}


@dataclass
class Browser:
    """A browser of one person: it keeps cookies and follows nothing by itself."""

    app: Flask
    headers: dict[str, str] = field(default_factory=dict)
    prefix: str = ""
    client: Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = Client(self.app, TestResponse)

    def get(self, path: str = "", query: dict[str, str] | None = None, **headers: str) -> Page:
        """One page of the console."""
        return self._open(path, "GET", query_string=query, headers=headers)

    def post(self, path: str, _page: str | None = None, /, _headers: dict[str, str] | None = None, **data: Any) -> Page:
        """Send the form of a page, by default of the one at the same path; `form` in the data replaces its proof."""
        if "form" not in data:
            data["form"] = self.get(path if _page is None else _page).form
        return self._open(path, "POST", data=data, headers=_headers or {})

    @property
    def cookie(self) -> str:
        """The session's cookie as a header has it."""
        [value] = [kept.value for kept in self.client._cookies.values() if kept.key == COOKIE]
        return f"{COOKIE}={value}"

    def presenting(self, cookie: str) -> Browser:
        """A browser on the same console that presents this cookie everywhere, and keeps none.

        A client that keeps cookies drops a header of that name.
        """
        other = Browser(self.app, {"Cookie": cookie}, self.prefix)
        other.client = Client(self.app, TestResponse, use_cookies=False)
        return other

    def sign_in(self, token: str, **data: str) -> Page:
        """Sign in with a token."""
        return self.post("sign-in", token=token, **data)

    def _open(self, path: str, method: str, headers: dict[str, str], **options: Any) -> Page:
        named = {name.replace("_", "-"): value for name, value in {**self.headers, **headers}.items()}
        overrides = {"SCRIPT_NAME": self.prefix} if self.prefix else {}
        base = f"http://localhost{self.prefix}/" if self.prefix else None
        response = self.client.open(
            f"/console/{path}", method=method, headers=named, base_url=base, environ_overrides=overrides, **options
        )
        return Page(response)


class CompiledTemplates(BytecodeCache):
    """What a template was compiled to for one console serves the next one in the same process."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if kept := self._kept.get(bucket.key):
            bucket.bytecode_from_string(kept)

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._kept[bucket.key] = bucket.bytecode_to_string()


Opened = Callable[..., Browser]


@pytest.fixture(scope="session")
def templates() -> CompiledTemplates:
    """Compiling them takes longer than most tests do."""
    return CompiledTemplates()


@pytest.fixture(scope="session")
def empty_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty log, which each test gets a copy of."""
    folder = tmp_path_factory.mktemp("console")
    migrated(f"sqlite:///{folder}/outbox.db").close()
    return folder


@pytest.fixture
def database(tmp_path: Path, empty_log: Path) -> Iterator[Database]:
    shutil.copytree(empty_log, tmp_path, dirs_exist_ok=True)
    opened = Database(f"sqlite:///{tmp_path}/outbox.db")
    yield opened
    opened.close()


@pytest.fixture
def browse(database: Database, tmp_path: Path, templates: CompiledTemplates) -> Iterator[Opened]:
    """Open a browser on a console of its own over the log; `settings` are `BUCKETWIRE_*` variables."""
    with ExitStack() as stack:

        def opened(*, prefix: str = "", **settings: str) -> Browser:
            named = {f"BUCKETWIRE_{name.upper()}": value for name, value in settings.items()}
            base = {
                "BUCKETWIRE_DATABASE_URL": f"sqlite:///{tmp_path}/outbox.db",
                "BUCKETWIRE_BROKER_URL": "redis://127.0.0.1:9",
                "BUCKETWIRE_DATA_DIR": str(tmp_path),
                "BUCKETWIRE_SECRET_KEYS": KEY,
            }
            app = create_app(Settings.from_environ(base | named))
            app.jinja_env.bytecode_cache = templates
            stack.callback(app.extensions["bucketwire"].database.close)
            return Browser(app, prefix=prefix)

        yield opened


@pytest.fixture
def local(browse: Opened) -> Browser:
    """A browser on this machine, while there is no token."""
    return browse()


@pytest.fixture
def admin(browse: Opened) -> Browser:
    """A browser that has signed in with a token that may change everything."""
    browser = browse(api_tokens=TOKENS)
    assert browser.sign_in(ADMIN).status == 303
    return browser
