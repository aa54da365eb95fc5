"""The laws, as checks through the shipped code: exact enumeration, conformance of every mechanism, the audit of a task."""
