"""SparkApplications in a real cluster, where kubeflow's spark-operator is not to be had.

    python -m e2e.spark --kubeconfig FILE

does for them what that operator does: submits each with spark-submit in cluster mode, so that its
driver and executors are pods, and keeps its state up to date. The states are those of the local
runner; only the way a driver starts is another.
"""
