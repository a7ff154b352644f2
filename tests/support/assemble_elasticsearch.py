"""Puts an Elasticsearch together from the jars that Maven Central has, because no registry has the distribution.

Server, transport, x-pack-core and x-pack-security are the published jars as they are (Elastic License 2.0: for running
in tests, not for passing on). Ours are a launcher that starts `org.elasticsearch.node.Node` itself, a plugin with the
few parts that only the distribution has, and empty interfaces in place of OpenSAML, which only SAML logins would use.
OpenSearch is its server and Netty. Our sources are for Elasticsearch 8 and OpenSearch 2; `ADAPTED` has what the next
versions changed.
"""

from __future__ import annotations

import os
import re
import struct
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "services" / "sources"
SERVER = "org.elasticsearch:elasticsearch"
PLUGIN = "org.elasticsearch.plugin:"
# OpenSAML is not on Maven Central; the other two only repeat classes, which Elasticsearch refuses to start with.
EXCLUDED = (
    "org.opensaml:*",
    "net.shibboleth.utilities:*",
    "net.jcip:jcip-annotations",
    "com.sun.activation:jakarta.activation",
)
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"

# Of these Maven Central lacks the releases for Elasticsearch 9: templates of indices that no test uses, and SAML.
TEMPLATES, SAML = f"{PLUGIN}x-pack-template-resources:8.19.21", f"{PLUGIN}es-opensaml-security-api:8.19.21"
_NETTY = """List.of(new org.opensearch.plugins.PluginInfo(Netty4ModulePlugin.class.getName(), "", "",
        org.opensearch.Version.CURRENT, "21", Netty4ModulePlugin.class.getName(), List.of(), false))"""
_HANDLERS = (
    "Settings s, NamedWriteableRegistry r, RestController c, ClusterSettings cl, IndexScopedSettings i, "
    "SettingsFilter f,\n      IndexNameExpressionResolver n, "
)
# By the source: the major version that changed something, and what stands there before and since.
ADAPTED: dict[str, tuple[int, dict[str, str]]] = {
    "EsNode.java": (
        9,
        {"env.modulesDir()": "env.modulesDir(), false", "env.pluginsDir()": "env.pluginsDir(), false"},
    ),
    "PeerExtras.java": (
        9,
        {_HANDLERS: "RestHandlersServices s, ", "FilterFactory(name, s)": "FilterFactory(name)"},
    ),
    "OsNode.java": (
        3,
        {"transport.Netty4Plugin;": "transport.Netty4ModulePlugin;", "List.of(Netty4Plugin.class)": _NETTY},
    ),
}

Jars = dict[str, Path]
Run = Callable[[Sequence[str | Path]], None]


def assemble(home: Path, version: str, scratch: Path, run: Run, javac: Sequence[str | Path], java: int) -> None:
    """Fill the empty folder `home`; downloads go to `scratch`, and `run` runs mvn and `javac` (for that `java`)."""
    templates, saml = ([TEMPLATES], [SAML]) if _major(version) >= 9 else ([], [])

    def jars(name: str, *artifacts: str) -> Jars:
        return _download(scratch / name, artifacts, version, run)

    server, transport = jars("server", SERVER), jars("transport", SERVER, f"{PLUGIN}transport-netty4")
    core = jars("core", SERVER, f"{PLUGIN}x-pack-core", *templates)
    security = jars("security", SERVER, f"{PLUGIN}x-pack-core", f"{PLUGIN}x-pack-security", *templates, *saml)
    _put(home / "lib", server)
    _module(home, "transport-netty4", version, _without(transport, server))
    _module(home, "x-pack-core", version, _without(core, server))
    _module(home, "x-pack-security", version, _without(security, server, core))
    _saml_stubs(home / "modules/x-pack-security")
    for source, output in (("EsNode.java", home / "launcher"), ("PeerExtras.java", scratch / "extras")):
        (scratch / source).write_text(adapted(source, version))
        run([*javac, "-nowarn", "--release", str(java), "-cp", f"{home}/lib/*", "-d", output, scratch / source])
    _extras(home / "plugins/peer-extras", scratch / "extras", version, java)


def assemble_opensearch(
    home: Path, version: str, scratch: Path, run: Run, javac: Sequence[str | Path], java: int
) -> None:
    """Fill the empty folder `home` with an OpenSearch: its server, Netty, and a launcher of ours."""
    jars = _download(
        scratch / "opensearch",
        ("org.opensearch:opensearch", "org.opensearch.plugin:transport-netty4-client"),
        version,
        run,
    )
    (api,) = [name for name in jars if name.startswith("log4j-api-")]  # of its core it needs the same version
    core = _download(
        scratch / "log4j", ("org.apache.logging.log4j:log4j-core",), api.removeprefix("log4j-api-")[:-4], run
    )
    _put(home / "lib", jars | core)
    source = scratch / "OsNode.java"
    source.write_text(adapted(source.name, version))
    run([*javac, "-nowarn", "--release", str(java), "-cp", f"{home}/lib/*", "-d", home / "launcher", source])


def adapted(source: str, version: str) -> str:
    """The text of one of our sources as a version of its server needs it."""
    text = (SOURCES / source).read_text()
    since, changes = ADAPTED[source]
    for before, now in changes.items() if _major(version) >= since else ():
        assert text.count(before) == 1, f"{source} has {before!r} {text.count(before)} times"
        text = text.replace(before, now)
    return text


def _major(version: str) -> int:
    return int(version.partition(".")[0])


def _download(folder: Path, artifacts: Sequence[str], version: str, run: Run) -> Jars:
    """The runtime jars of the artifacts, of the version unless one has its own, by file name."""

    def named(artifact: str) -> str:
        group, name, *_ = artifact.split(":")
        return f"<groupId>{group}</groupId><artifactId>{name}</artifactId>"

    def pinned(artifact: str) -> str:
        _, _, *own = artifact.split(":")
        return f"{named(artifact)}<version>{own[0] if own else version}</version>"

    exclusions = "".join(f"<exclusion>{named(artifact)}</exclusion>" for artifact in EXCLUDED)
    dependencies = "".join(
        f"<dependency>{pinned(artifact)}<exclusions>{exclusions}</exclusions></dependency>" for artifact in artifacts
    )
    pom = folder.with_suffix(".xml")
    pom.write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>peers</groupId><artifactId>es</artifactId>"
        f"<version>1</version><packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
    )
    run(["mvn", "-q", "-B", "-f", pom, COPY, "-DincludeScope=runtime", f"-DoutputDirectory={folder}"])
    return {path.name: path for path in folder.glob("*.jar")}


def _without(jars: Jars, *others: Jars) -> Jars:
    return {name: path for name, path in jars.items() if not any(name in other for other in others)}


def _put(folder: Path, jars: Jars) -> None:
    folder.mkdir(parents=True)
    for name, path in jars.items():
        os.link(path, folder / name)


def _module(home: Path, name: str, version: str, jars: Jars) -> None:
    """A module folder with the descriptor from its own jar; with a blank modulename it goes on the class path."""
    folder = home / "modules" / name
    _put(folder, jars)
    with zipfile.ZipFile(jars[f"{name}-{version}.jar"]) as jar:
        descriptor = jar.read(f"META-INF/es-plugins/{name}/plugin-descriptor.properties").decode()
    (folder / "plugin-descriptor.properties").write_text(re.sub(r"(?m)^modulename=.*$", "", descriptor))


def _saml_stubs(folder: Path) -> None:
    """Empty interfaces for the OpenSAML names in x-pack-security, so that its SAML actions can be loaded."""
    wanted: set[str] = set()
    present: set[str] = set()
    for path in folder.glob("*.jar"):
        with zipfile.ZipFile(path) as jar:
            classes = [name for name in jar.namelist() if name.endswith(".class")]
            present |= {name.removesuffix(".class") for name in classes}
            if path.name.startswith(("x-pack-security", "es-opensaml")):
                for name in classes:
                    found = re.findall(rb"((?:org/opensaml|net/shibboleth)/[\w/$]+)", jar.read(name))
                    wanted |= {match.decode() for match in found}
    with zipfile.ZipFile(folder / "opensaml-stubs.jar", "w") as jar:
        for name in sorted(wanted - present):
            jar.writestr(f"{name}.class", _empty_interface(name))


def _empty_interface(name: str) -> bytes:
    """The class file of `public interface name {}`, Java 8."""

    def utf8(text: str) -> bytes:
        return b"\1" + struct.pack(">H", len(text)) + text.encode()

    def reference(index: int) -> bytes:
        return b"\7" + struct.pack(">H", index)

    constants = utf8(name) + reference(1) + utf8("java/lang/Object") + reference(3)
    public_abstract_interface, this, parent = 0x0601, 2, 4
    head = b"\xca\xfe\xba\xbe" + struct.pack(">HHH", 0, 52, 5)
    return head + constants + struct.pack(">HHHHHHH", public_abstract_interface, this, parent, 0, 0, 0, 0)


def _extras(folder: Path, classes: Path, version: str, java: int) -> None:
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "peer-extras.jar", "w") as jar:
        for path in classes.rglob("*.class"):
            jar.write(path, path.relative_to(classes))
    (folder / "plugin-descriptor.properties").write_text(
        f"description=x\nversion=1\nname=peer-extras\njava.version={java}\nelasticsearch.version={version}\n"
        "classname=peers.PeerExtras\n"
    )
