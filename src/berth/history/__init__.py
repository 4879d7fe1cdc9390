"""The history: Events and Records as Parquet files, and Records made from Events."""
