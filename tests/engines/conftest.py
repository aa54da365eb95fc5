"""A Spark cluster for the tests that need one: a master and two workers, each a process of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "spark: needs Java, and starts a small Spark cluster")


def java_version() -> int:
    """The version of Java that Spark would use; 0 if there is none."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if program is None:
        return 0
    said = subprocess.run([program, "-version"], capture_output=True, text=True).stderr
    found = re.search(r'version "(\d+)', said)
    return int(found.group(1)) if found else 0


@pytest.fixture(scope="session")
def spark_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for everything that Spark writes, and the environment that keeps it there and on this machine."""
    if java_version() < 17:
        reason = "Spark needs Java 17 or newer: scripts/install_system.sh"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("SPARK_LOCAL_DIRS", str(folder))
        yield folder


@pytest.fixture(scope="session")
def session(spark_home: Path) -> Iterator[Any]:
    """A session on a cluster of two executors with one core each."""
    import pyspark
    from pyspark.sql import SparkSession

    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # the tests end before a better compiler would pay
    settings = {
        "spark.driver.extraJavaOptions": quick,
        "spark.executor.extraJavaOptions": quick,
        "spark.sql.codegen.wholeStage": "false",
        "spark.ui.enabled": "false",
        "spark.log.level": "OFF",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.warehouse.dir": str(spark_home / "warehouse"),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    builder = SparkSession.builder.master("local-cluster[2,1,1024]").appName("hubbub tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    work = Path(pyspark.__file__).parent / "work" / session.sparkContext.applicationId
    yield session
    session.stop()
    shutil.rmtree(
        work, ignore_errors=True
    )  # a local cluster's workers write beside Spark, wherever they are told to
