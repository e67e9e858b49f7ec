"""The custom resources as pydantic models, and the compiler from models to CRDs."""

GROUP = "rezone.dev"
VERSION = "v1alpha1"
NAMESPACE = "rezone-system"
"""Where the operator is installed, unless somebody says otherwise."""
API_VERSION = f"{GROUP}/{VERSION}"
