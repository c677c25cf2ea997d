# `make bench` runs the main job, `make test` everything that must hold. Both install what they need first.

CARGO ?= cargo
BENCH ?= allreduce

.PHONY: bench test setup setup-test check unit docs

bench: setup
	$(CARGO) build --release --locked -p nd-tools
	$(CARGO) run --release --locked --quiet -p nd-tools --bin nd-bench -- $(BENCH) -b 8 -e 128M -f 4

test: setup-test check docs unit

setup:
	@scripts/setup

setup-test:
	@scripts/setup test

check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

docs:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

# The commands are tested as they are shipped: optimised.
unit:
	@rm -f target/skipped.txt
	SKIPPED_TESTS=$(CURDIR)/target/skipped.txt $(CARGO) test --workspace --release --locked
	@if [ -s target/skipped.txt ]; then sort -u target/skipped.txt; fi
