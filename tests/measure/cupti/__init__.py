"""The CUPTI collector, against real headers and libraries and against a scripted CUPTI."""
