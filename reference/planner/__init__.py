"""The planner: memory and time of serving a model under a policy, told by its rules alone."""
