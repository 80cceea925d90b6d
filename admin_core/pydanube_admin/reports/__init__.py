"""Reports on Spark, each run as a process beside the broker."""
