"""What is done to a store now and then: collection of versions, reading through, quarantine."""
