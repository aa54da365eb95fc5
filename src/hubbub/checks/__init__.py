"""The laws, checked through the shipped code: exact enumeration, conformance of every mechanism, audit of a task."""
