"""Start the service's processes with its packages: `python -m bucketwire.start MODULE [ARGUMENT …]`.

It runs a module as `python -m` does, such as `celery` or `gunicorn`, after it has imported the packages `app`,
`migrations`, `spark_jobs` and `workers` from the installation. Their modules are looked up in the packages that are
imported already. So no package of the same name takes their place: in the working directory, which celery and gunicorn
search first, on PYTHONPATH, or installed beside this one. And only these processes know those names.
"""

import runpy
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

PACKAGES = ("app", "migrations", "spark_jobs", "workers")


def folder() -> Path:
    """Return the folder that contains the packages: this one in a wheel, the one above in a checkout."""
    here = Path(__file__).parent
    return here if (here / "app").is_dir() else here.parent


def load() -> None:
    """Import the four packages, in place of others of the same names. Raises `ImportError` if one is missing.

    Hide OpenTelemetry, which libraries such as redis-py load wherever it is installed; `app.telemetry` shows it.
    """
    sys.modules.setdefault("opentelemetry", None)  # type: ignore[arg-type]  # as the import system has it: there is none
    for name in PACKAGES:
        spec = PathFinder.find_spec(name, [str(folder())])
        if spec is None or spec.loader is None:
            raise ImportError(f"Bucketwire is not installed completely: there is no {name} in {folder()}", name=name)
        if getattr(sys.modules.get(name), "__file__", None) != spec.origin:
            module = sys.modules[name] = module_from_spec(spec)
            spec.loader.exec_module(module)


def main() -> None:
    """Run the command line `bucketwire`."""
    load()
    from app.cli import main as run  # noqa: PLC0415 - it is found from here on

    run()


if __name__ == "__main__":
    load()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
