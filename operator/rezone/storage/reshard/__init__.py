"""What a partition gives to, and takes from, partitions of another layout."""
