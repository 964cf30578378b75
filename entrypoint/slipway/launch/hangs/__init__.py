"""Where the processes of a job stand, whatever program they run, and whom a job that hangs waits for."""
