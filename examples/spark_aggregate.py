"""Add up Parquet files of reports on a Spark cluster, and print what they say.

    spark-submit examples/spark_aggregate.py TASK.toml REPORTS STATE

TASK.toml is the task, REPORTS a file or folder that Spark can read (a local folder, hdfs://, s3a://), STATE the local
file that gets the state of all days. The package goes to the executors by itself.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from hubbub import Task, estimate
from hubbub.engines import spark as crowd
from hubbub.protocol.files import save_state


def main(task_file: str, reports: str, output: str) -> None:
    task = Task.load(task_file)
    session = SparkSession.builder.appName("hubbub").getOrCreate()
    days = crowd.aggregate_by(session.read.parquet(reports), [task])
    total = task.mechanism.empty(task.keys)
    for (_, day), state in sorted(days.items()):
        print(f"{day}: {state.count:,} reports")
        total = total.merge(state)
    save_state(output, task, total)
    print(estimate(task, total))
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
