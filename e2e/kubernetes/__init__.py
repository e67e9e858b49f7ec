"""The product on a real cluster: installed by Helm, used by a client in a pod, while things break.

`conftest` brings the cluster (one of `e2e.kind`, or the one of KUBECONFIG), the chart and a zone;
the cases of `test_cluster` run in the order in which they are written. In each the client of
`client_pod` writes and reads all the time, and afterwards everything it was promised is proved.
"""
