"""`bucketwire reconcile`: compare a target with a bucket. Becomes the job on Spark, which nothing in app imports."""

import click

from app.cli.run import become

JOBS = "spark_jobs"  # the one seam between app and the jobs: a name that Python runs


@click.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="BUCKET --target TYPE:NAME …")
def reconcile(arguments: tuple[str, ...]) -> None:
    """Compare what a target holds with what a bucket holds; --repair sets it right.

    Needs pip install 'bucketwire[spark]' and Java 17; --help shows every option.
    """
    become([JOBS, "reconcile", *arguments])
