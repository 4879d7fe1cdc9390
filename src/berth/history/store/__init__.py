"""The history as files: a folder of Parquet, into which imports are merged."""
