"""What the operator keeps in objects: custom resources, the route table, its Lease, events."""
