"""The crash matrix: the whole system in one thread, under a clock that only moves when it must.

What runs unchanged is everything that decides or remembers: the coordinator with its queue,
reconcile loops, acts, monitor and notifier; the stores of `rezone.kube`; and, in the data nodes,
`Partition` with its leader, follower and takeover duties, in-sync sets and fencing, `Control`
and `DataNode`. The reason for taking so much: what goes wrong in such a system goes wrong
between the decisions - a cache that outlived its conflict, an act that was not repeated, a call
of a dead coordinator that arrives late - and glue written once more for a simulation would have
other faults than the one that is shipped.
The decisions alone are tested one by one in `tests/domain`.

What stands in for the world, each as small as it can be:

- `loop`: an asyncio loop in virtual time. No thread, no socket, no sleep; the order of events
  follows from the seed alone.
- `nodes`: data nodes with real stores and journals. `disk`, `file_engine`, `machine`: a disk of
  real files, and an engine on it, of which a crash leaves what was synced and something of the
  rest (decision 0190). `node`, `streams`, `pulled`: a data node on it; replication and copies
  between nodes, by a step or a batch at a time. `copies`, `copy_node`, `waiting`: copies by the
  real copy loop, on streams that break (decision 0200). `held`: what replicas have, also of
  machines that are down (decision 0203).
- `cluster`: a whole zone. `apiserver`: objects with resourceVersion and compare-and-set, and the
  faults of a real one. `process`: one life of the operator. It can die before and after every
  write to the API server and every call to a data node; calls that have left are delivered all the
  same. `kubelet`: pods that start, restart and go, with or without their disk; SparkApplications.
  `world`: all of it together, and the faults that can be put into it. `checks`: what must hold
  after every step, and at the end.
- `scenarios`: what is asked of a zone, also with copies that fail, or wait (`target_scenarios`),
  and what breaks meanwhile.
- `storms`: data nodes without an operator. `data_plane`: on such files; `cut_over`: in the middle
  of a re-sharding, with the real `reshard_pulls` on lines that fail; `closed_times`: with clocks
  that are wrong by far; `indexed`: with indexes that come and go, takeovers, a log that is trimmed,
  and what seldom comes by itself (`plots`, decision 0211); `copy_storm`: with replicas that come
  and go all the time.
  `overwriting` is a zone of `cluster` again: drivers overwrite it, and die, while all of it breaks.
- `clients`: storms with producers, single rows, shared calls and followers of changes; drivers of
  overwrites.

A run is determined by its scenario, the crash point and the seed; a failing one prints them, and
`REZONE_SIMULATION_SEED=<n>` runs that seed alone. `REZONE_SIMULATION_SEEDS=<n>` runs more of them,
and `many` thousands on all processors.
"""
