"""`python -m tests.provision`."""

import sys

from tests.provision.command import main

sys.exit(main(sys.argv[1:]))
