"""What is said of Java when it does not start."""

from __future__ import annotations

import io

from spark_jobs.session import last_lines

# Of Spark 4.1 as a user of no name.
FAILED = b"""WARNING: Using incubator modules: jdk.incubator.vector
Exception in thread "main" java.io.IOException: Invalid UID, could not determine effective user
\tat org.apache.hadoop.security.UserGroupInformation.getCurrentUser(UserGroupInformation.java:585)
\tat org.apache.spark.deploy.SparkSubmit$$anon$2.doSubmit(SparkSubmit.scala:1168)
\tat java.base/javax.security.auth.login.LoginContext.invoke(LoginContext.java:851)
Caused by: javax.security.auth.login.LoginException: java.lang.NullPointerException: invalid null input: name

\t... 4 more
"""


def test_the_reason_is_said_and_not_where_java_was() -> None:
    said = last_lines(io.BytesIO(FAILED))
    assert said.endswith("NullPointerException: invalid null input: name")
    assert "Invalid UID" in said
    assert "UserGroupInformation.java" not in said
    assert last_lines(io.BytesIO(b"at once\n\nat last: no memory")) == "at once; at last: no memory"
    assert last_lines(io.BytesIO(b"")) == ""
