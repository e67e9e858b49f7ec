"""Operators of others that Rezone works with, really run: cert-manager, kubeflow's spark-operator.

Their images are out of reach here, their Go modules are not: each is built once (minutes) and runs
as a process beside a control plane on this machine, with the definitions and the chart that its
module carries.
"""
