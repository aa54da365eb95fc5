"""What device and server agree on: the task, the files that carry reports and states, sealed reports."""
