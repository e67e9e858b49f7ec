"""What goes by way of the API server's proxy to pods, on the one-machine cluster.

kube-apiserver passes nothing on to a loopback address. So the cluster is in a network namespace of
its own, in which pods have addresses of another range that are all the machine's own.
"""
