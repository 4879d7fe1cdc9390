"""berth beside Slurm: it reads the queue that is there, and advises or places jobs.

`squeue`, `scontrol` and slurmrestd are called in `controller` and `rest` alone; the rest takes and returns values.
"""
