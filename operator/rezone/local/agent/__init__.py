"""The node agent: one process that plays the kubelet of every node of the local cluster.

`nodes` keeps Node objects and Leases, `agent` hands each pod bound to one of them to a `pod`
worker, which runs `container`s as processes with `probes`, `volumes` and an `environment`, and
reports by `status`. `server` serves logs to the API server, `provisioner` makes PersistentVolumes.
Everything runs in one event loop; a pod is touched by its own worker only.
"""
