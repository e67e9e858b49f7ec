"""The one-machine Kubernetes: a real control plane, a node agent and a Spark runner.

Every part is a process of its own under one state directory; nothing here is imported by the
operator. All sockets are on loopback.
"""
