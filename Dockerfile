# One image for every part of the service; the command says which: `api`, `beat`, `worker --only drain`, …
# And one with Spark and Java (`docker build --target spark`), which only `worker --only spark` needs.
FROM python:3.11-slim-bookworm AS packages
WORKDIR /src
COPY requirements.lock ./
# Everything by its hash, before the code: what is not in the lock, or is not what was locked, stops the build.
# Setuptools comes first, because some packages are published as source only: an isolated build would fetch its own.
# The image's pip installs into the environment, which has none.
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv --without-pip /opt/bucketwire \
    && sed -n '/^setuptools==/,/[^\\]$/p' requirements.lock > setuptools.lock \
    && pip --python /opt/bucketwire/bin/python install --require-hashes -r setuptools.lock \
    && pip --python /opt/bucketwire/bin/python install --no-build-isolation --require-hashes -r requirements.lock
COPY pyproject.toml setup.py README.md LICENSE THIRD-PARTY-NOTICES.md ./
COPY bucketwire bucketwire
COPY app app
COPY workers workers
COPY spark_jobs spark_jobs
COPY migrations migrations
# What `bucketwire --version` names: docker build --build-arg COMMIT=$(git rev-parse HEAD)
ARG COMMIT=
RUN SOURCE_COMMIT=$COMMIT pip --python /opt/bucketwire/bin/python install --no-deps --no-build-isolation .
# Wheels contain their libraries with debug information, 40 MB of it (auditwheel's copies in *.libs do not bear a change).
RUN apt-get update \
    && apt-get install --yes --no-install-recommends binutils \
    && find /opt/bucketwire/lib -name '*.so' ! -path '*.libs/*' -exec strip --strip-debug {} +

FROM packages AS build
# Of botocore's 440 descriptions of services the import from MinIO needs S3's, and a login those of STS and SSO.
RUN pip --python /opt/bucketwire/bin/python uninstall --yes setuptools \
    && find /opt/bucketwire/lib/python3.11/site-packages/botocore/data -mindepth 1 -maxdepth 1 -type d \
        ! -name s3 ! -name sts ! -name 'sso*' -exec rm -r {} +

FROM packages AS build-spark
COPY requirements-spark.lock ./
RUN pip --python /opt/bucketwire/bin/python install --no-build-isolation --require-hashes -r requirements-spark.lock \
    && pip --python /opt/bucketwire/bin/python uninstall --yes setuptools

# The libraries of the Spark jobs, for a pod without a network and with a home that it cannot write to. A file that is not
# what `connectors` has the hash of stops the build.
FROM python:3.11-slim-bookworm AS jars
RUN apt-get update && apt-get install --yes --no-install-recommends maven
WORKDIR /jars
COPY spark_jobs/connectors.py /src/connectors.py
ENV PYTHONPATH=/src
RUN python -c 'import connectors; print(*connectors.SHA256, sep="\n")' \
    | xargs -I{} mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy -Dartifact={} -DoutputDirectory=/jars \
    && python -c 'import connectors; connectors.check("/jars")'

FROM python:3.11-slim-bookworm AS base
# As process 1 a program without a handler never gets SIGTERM, and in its first second none of the parts has one: tini is
# process 1, and passes signals on.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin \
    && groupadd --system --gid 10001 bucketwire \
    && useradd --system --uid 10001 --gid 10001 --home-dir /var/lib/bucketwire --create-home bucketwire \
    && install --directory --owner bucketwire --group bucketwire /var/lib/bucketwire/var
ENV PATH=/opt/bucketwire/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    BUCKETWIRE_DATA_DIR=/var/lib/bucketwire/var
WORKDIR /var/lib/bucketwire
# SIGTERM ends each part cleanly: the API answers what it has begun, a worker finishes its batch.
ENTRYPOINT ["tini", "--", "bucketwire"]

FROM base AS spark
# libnss-wrapper, because Java needs a name for its user, and a cluster may choose one that has none.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libnss-wrapper openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin
COPY --from=build-spark /opt/bucketwire /opt/bucketwire
COPY --from=jars /jars /opt/bucketwire/jars
ENV BUCKETWIRE_SPARK_JARS=/opt/bucketwire/jars
# By number, so that Kubernetes can see that it is not root.
USER 10001:10001
CMD ["worker", "--only", "spark"]

FROM base
COPY --from=build /opt/bucketwire /opt/bucketwire
USER 10001:10001
EXPOSE 8730
CMD ["api"]
