"""The jobs' commands: each reads its options, opens a Spark session, calls its job and prints the result.

Importing a command, and `--help`, need no Spark.
"""
