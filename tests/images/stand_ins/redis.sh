#!/bin/bash
# As the official image of Valkey, which is open to the network that it is in.
set -e
if [ "$1" = valkey-server ]; then
  chown redis: /data
  exec setpriv --reuid redis --regid redis --init-groups "$@" --protected-mode no
fi
exec "$@"
