# One image for every part of the service; the command says which: `api`, `beat`, `worker --only drain`, …
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY requirements.lock ./
# Everything by its hash, before the code: what is not in the lock, or is not what was locked, stops the build.
RUN python -m venv /opt/bucketwire \
    && /opt/bucketwire/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements.lock
COPY pyproject.toml README.md ./
COPY app app
COPY workers workers
COPY spark_jobs spark_jobs
COPY migrations migrations
RUN /opt/bucketwire/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation .

FROM python:3.11-slim-bookworm
RUN useradd --system --uid 10001 --home-dir /var/lib/bucketwire --create-home bucketwire
COPY --from=build /opt/bucketwire /opt/bucketwire
ENV PATH=/opt/bucketwire/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    BUCKETWIRE_VAR=/var/lib/bucketwire/var
USER bucketwire
WORKDIR /var/lib/bucketwire
EXPOSE 8730
# SIGTERM ends each part cleanly: the API answers what it has begun, a worker finishes its batch.
ENTRYPOINT ["bucketwire"]
CMD ["api"]
