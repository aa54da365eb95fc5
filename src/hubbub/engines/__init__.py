"""The same aggregation where the reports are: Parquet files on one machine, and Spark."""
