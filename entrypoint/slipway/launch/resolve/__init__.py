"""From the environment to the plan: settings, schedulers, this host, topology. Pure but for looking at the host."""
