"""The camera laboratory: servers, clips and sinks for the tests of capture."""
