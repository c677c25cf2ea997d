//! Side-by-side benchmarks: nd against what a user would pick instead, in the same run on the same machine.
