#!/bin/bash
# As the official image of PostgreSQL: a user and a database of the environment, made at the first start.
set -e
if [ "$(id -u)" = 0 ]; then
  chown postgres: "$PGDATA" /var/run/postgresql
  chmod 700 "$PGDATA"
  exec setpriv --reuid postgres --regid postgres --init-groups "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  initdb --username "$POSTGRES_USER" --pwfile <(printf %s "${POSTGRES_PASSWORD:?}") --auth-host scram-sha-256 --auth-local trust
  echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
  echo "listen_addresses = '*'" >> "$PGDATA/postgresql.conf"
  pg_ctl --wait --options "-c listen_addresses=''" start
  createdb --username "$POSTGRES_USER" --maintenance-db postgres "$POSTGRES_DB"
  pg_ctl --wait --mode fast stop
fi
exec "$@"
