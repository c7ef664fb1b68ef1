"""The reason in Spark's error when a file system accepts no data."""

import pytest

from workers.spark import frames

SAID = {
    "Caused by: java.io.IOException: No space left on device\n\tat java.base/java.io.FileOutputStream.writeBytes": "no space left",
    "org.apache.hadoop.hdfs.protocol.DSQuotaExceededException: The DiskSpace quota of /data is exceeded": "no space left",
    "java.io.IOException: Mkdirs failed to create file:/proc/x/_temporary/0/_temporary/attempt_1 (exists=false)": (
        "no folder can be created there"
    ),
    "org.apache.hadoop.fs.ParentNotDirectoryException: Parent path is not a directory: file:/x": "no folder can be created there",
    "org.apache.hadoop.security.AccessControlException: Permission denied: user=paceline, access=WRITE": "no permission",
    "java.nio.file.AccessDeniedException: s3a://bucket/x: PUT 0-byte object: 403 Forbidden": "no permission",
    "java.io.FileNotFoundException: /data/x/part-0.parquet (Read-only file system)": "the file system is read-only",
    'org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "foo"': "Spark has no library for such a URL",
    "java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3A not found": "Spark has no library for such a URL",
}


@pytest.mark.parametrize("text", SAID)
def test_a_refusal_of_the_file_system_is_one_reason(text: str) -> None:
    assert frames.refusal(f"Py4JJavaError: Job aborted due to stage failure.\n{text}\n\tat x.y.Z") == SAID[text]


def test_an_error_of_the_users_own_code_stays_as_it_is() -> None:
    assert frames.refusal("PythonException: ValueError: a bad row\n[DIVIDE_BY_ZERO] Division by zero") is None
