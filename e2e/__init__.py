"""End-to-end suites: the main job on one machine, and the product on a real Kubernetes cluster."""
