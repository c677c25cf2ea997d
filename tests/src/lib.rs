//! Helpers for the tests that cross crates, processes and hosts; the tests themselves lie in `tests/tests/`.
