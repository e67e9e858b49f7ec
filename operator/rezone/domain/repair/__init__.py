"""What the coordinator mends without a task: leaders, in-sync sets, lost quorums."""
