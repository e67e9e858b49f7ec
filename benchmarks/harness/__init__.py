"""What benchmarks of whole nodes share; no benchmark itself, so `make bench` does not run it."""
