"""What pages show of zones, partitions, tasks and jobs: pure, from objects to views of them."""
