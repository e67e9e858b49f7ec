"""Adapters to the Kubernetes API, the only metastore.

errors      what a request can end with, and what to do then
kinds       the kinds of objects that are read and written
connection  requests to the API server as JSON, by the official `kubernetes` package
client      the API server by kind, with errors that say what to do
names       labels, annotations, owner references, deterministic names
store       custom resources: read, compare-and-set of the status, create-or-adopt
events      Kubernetes events, one per change
routes      the route table of a zone, sharded over ConfigMaps
template    strategic merge of template overrides
data_node   pure builders of a data node's pod, claim, service and budget
pods        brings those to the API server, observes pods and nodes
spark       SparkApplications of rebalance tasks
lease       leader election; its epoch fences the data plane

Objects are plain JSON here (`Manifest`): what is read is written back without loss of fields
that this version does not know.
"""
