#!/bin/bash
# As the official image of RabbitMQ, which reads RABBITMQ_DEFAULT_USER and RABBITMQ_DEFAULT_PASS itself.
set -e
if [ "$1" = rabbitmq-server ]; then
  chown -R rabbitmq: /var/lib/rabbitmq
  exec setpriv --reuid rabbitmq --regid rabbitmq --init-groups "$@"
fi
exec "$@"
