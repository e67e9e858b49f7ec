"""The custom resources as pydantic models, and the compiler from models to CRDs."""

GROUP = "rezone.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
