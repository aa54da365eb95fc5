"""The laws, checked through the shipped code: by enumeration, conformance and audit."""
