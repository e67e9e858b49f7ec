"""Keys and certificates of a zone, as Secrets and CertificateRequests keep them."""
