"""Where rows live, as far as a client knows."""
