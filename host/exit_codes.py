"""The exit codes of commands, jobs and ranks."""

EXIT_BAD = 1
"""The subject is not good: a run ended short of its target, a log fails its rules."""
EXIT_USAGE = 2
"""The input is bad. Of `rn50 launch` and most commands also: they failed."""
EXIT_FAILED = 3
"""A rank or a job failed."""
EXIT_STOPPED = 130
"""A signal ended a command."""
EXIT_JOB_STOPPED = 143
"""A signal ended a job."""
