"""The planner: memory and time of serving a model under a policy, from its rules alone."""
