# One image for every part of the service; the command says which: `api`, `beat`, `worker --only drain`, …
# And one with Spark and Java (`docker build --target spark`), which only `worker --only spark` needs.
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY requirements.lock ./
# Everything by its hash, before the code: what is not in the lock, or is not what was locked, stops the build.
RUN python -m venv /opt/bucketwire \
    && /opt/bucketwire/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements.lock
COPY pyproject.toml setup.py README.md LICENSE THIRD-PARTY-NOTICES.md ./
COPY bucketwire bucketwire
COPY app app
COPY workers workers
COPY spark_jobs spark_jobs
COPY migrations migrations
RUN /opt/bucketwire/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation .

FROM build AS build-spark
COPY requirements-spark.lock ./
# PySpark is published as source only: it is built with the setuptools that are installed by hash already.
RUN /opt/bucketwire/bin/pip install --no-cache-dir --disable-pip-version-check --no-build-isolation --require-hashes -r requirements-spark.lock

FROM python:3.11-slim-bookworm AS base
RUN useradd --system --uid 10001 --home-dir /var/lib/bucketwire --create-home bucketwire \
    && install --directory --owner bucketwire /var/lib/bucketwire/var
ENV PATH=/opt/bucketwire/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    BUCKETWIRE_DATA_DIR=/var/lib/bucketwire/var
WORKDIR /var/lib/bucketwire
# SIGTERM ends each part cleanly: the API answers what it has begun, a worker finishes its batch.
ENTRYPOINT ["bucketwire"]

FROM base AS spark
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build-spark /opt/bucketwire /opt/bucketwire
USER bucketwire
CMD ["worker", "--only", "spark"]

FROM base
COPY --from=build /opt/bucketwire /opt/bucketwire
USER bucketwire
EXPOSE 8730
CMD ["api"]
