"""What an installation adds to Python's modules: this one name.

In a wheel the packages `app`, `migrations`, `spark_jobs` and `workers` are in this folder, where no other software
finds them; in a checkout they are beside it. `bucketwire.start` loads them in the service's own processes.
"""
