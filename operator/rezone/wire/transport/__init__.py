"""How processes reach each other: Flight, channels, TLS, who a peer is, deadlines."""
