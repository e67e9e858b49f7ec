"""Adapters to the Kubernetes API, the only metastore.

api     requests as JSON by the official `kubernetes` package, by kind, with errors that say what
        to do; names, labels, owners; watches
stored  what the operator keeps in objects: custom resources, routes, its Lease, events
tls     keys and certificates of zones and of their clients
nodes   data nodes as pods, with services, budgets and volume claims
jobs    SparkApplications: of rebalances, and of persons

Objects are plain JSON here (`Manifest`): what is read is written back without loss of fields
that this version does not know.
"""
