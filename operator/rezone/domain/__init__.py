"""Pure decisions: keyspace, assignments, routes, planner, state machines. No I/O, no clock."""
