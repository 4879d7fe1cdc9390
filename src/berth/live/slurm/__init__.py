"""berth with Slurm: it reads Slurm's queue, and advises or places jobs.

`squeue`, `scontrol` and slurmrestd are called in `controller` and `rest` alone; the rest takes and returns values.
"""
