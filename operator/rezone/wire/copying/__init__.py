"""One snapshot read, fed to every receiver of it: from node to node, and by Spark."""
