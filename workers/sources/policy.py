"""The numbers by which sources are pulled from, with their units and the reasons for them."""

PULL_SECONDS = 0.5  # that a pull waits for messages: a change by an operator is noticed within it
REPORT_SECONDS = 2.0  # between two reports of a source's lag; an unreachable queue is noticed by it
READ_SECONDS = 0.5  # after which no further message of a pull is read before the queue hears of its consumer again
COMMIT_BYTES = 1 << 24  # of the records in one commit, unless a single message has more
FIRST_RETRY_MS, MAX_RETRY_MS = 500, 5_000  # so that pulling resumes within seconds after the queue is back
FIRST_FULL_SECONDS, MAX_FULL_SECONDS = 0.25, 8.0  # between two tries while a target has no room
SEARCH_SECONDS = 1.0  # between two searches for sources that nobody pulls from
MAX_STEP_SECONDS = 120.0  # that a step may take before the lease is no longer renewed: the thread hangs
STOP_SECONDS = 20.0  # for which a worker that ends waits for the last commits
FOUND_EVENTS = 500  # most events of what a listing has found in one commit
BAD_LISTING_MS = 60_000  # until a bucket is listed again whose listing could not be believed
MAX_LISTED = 10_000_000  # entries of a listing, which are 400 MB in a temporary file
