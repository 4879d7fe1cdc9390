"""Jobs of real users: on one machine (`local`), and beside a Slurm that is there (`slurm`)."""
