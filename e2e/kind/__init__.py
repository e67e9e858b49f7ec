"""A real multi-node cluster from nothing but package registries.

`python -m e2e.kind up` takes these steps, each skipped when its result is there already:

1. `host`: Debian packages, a Docker daemon of our own (its data, socket and rules apart from any
   other daemon's), and a rule that no packet of a node or pod leaves the machine.
2. `binaries`: the Kubernetes programs, CoreDNS, a volume provisioner and kind, from Go modules.
3. `nodeimage`: a Debian root with systemd, containerd and kubelet, the images of the system pods
   already in its store: there is no image registry to pull from.
4. `cluster`: `kind create cluster` with one control plane and a few workers.

Everything is under one directory (`places`), everything that runs is ended by `down`.
"""
