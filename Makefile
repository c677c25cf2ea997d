# `make bench` runs the main job, `make test` everything that must hold, `make fuzz` every parser on bytes of all kinds,
# `make torture` worlds in which ranks die, `make compare` the comparison with other libraries, `make targets` all of
# that which has a target, `make predict` the cost model beside measurements, `make launchers` nd-run, mpirun, srun and
# a Kubernetes Job on two hosts that are namespaces. Each installs what it needs first.

CARGO ?= cargo
BENCH ?= allreduce

.PHONY: fuzz bench test torture compare targets predict launchers setup setup-test setup-launchers check unit docs

bench: setup
	$(CARGO) build --release --locked -p nd-tools
	$(CARGO) run --release --locked --quiet -p nd-tools --bin nd-bench -- $(BENCH) -b 8 -e 128M -f 4

# Narrowed by PEERS=impi,openmpi4 COLL=allreduce TRANSPORT=shm RANKS=2 BUFFERS=plain SIZES=4,1K,16M PAIRS=7, and by
# COMPARE="--deadline 20 ..." (see `compare --help`).
# `make targets` measures all that has a target, which takes an hour and a half; it is narrowed in the same way.
compare targets: setup
	@scripts/setup-compare $(PEERS)
	$(CARGO) build --release --locked -p nd-tools -p nd-benches
	@$(CARGO) run --release --locked --quiet -p nd-benches --bin compare -- $(if $(filter targets,$@),--targets) \
	  $(if $(PEERS),--peers $(PEERS)) $(if $(COLL),--coll $(COLL)) $(if $(TRANSPORT),--transport $(TRANSPORT)) \
	  $(if $(RANKS),--ranks $(RANKS)) $(if $(SIZES),--sizes $(SIZES)) $(if $(PAIRS),--pairs $(PAIRS)) \
	  $(if $(BUFFERS),--buffers $(BUFFERS)) $(COMPARE)

# WORLDS="shm tcp" runs some of the worlds.
predict: setup
	$(CARGO) build --release --locked -p nd-tools -p nd-benches
	@$(CARGO) bench --locked --quiet -p nd-tools -p nd-benches --bench prediction -- $(WORLDS)

test: setup-test check docs unit

# Ranks that die, stop, abort or go astray at random moments, in about ten minutes; SEED=NUMBER repeats a run, and
# TORTURE="--fault stop --over tcp ..." narrows it (see `torture --help`).
torture: setup
	$(CARGO) build --release --locked -p nd-tests --bin torture
	@target/release/torture $(if $(SEED),--seed $(SEED)) $(TORTURE)

# The ways to start ranks on several machines, in half a minute; needs root.
launchers: setup-launchers
	$(CARGO) build --release --locked -p nd-tools
	@scripts/launchers

# Every parser of outside bytes, SECONDS_EACH seconds each.
SECONDS_EACH ?= 60
fuzz: setup-test
	@scripts/fuzz $(SECONDS_EACH)

setup:
	@scripts/setup

setup-test:
	@scripts/setup test

setup-launchers:
	@scripts/setup launchers

check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

docs:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

# The commands are tested as they are shipped: optimised. What fails on purpose leaves no flight recorder behind.
unit: export ND_RECORDER_DIR = none
unit:
	@rm -f target/skipped.txt
	SKIPPED_TESTS=$(CURDIR)/target/skipped.txt $(CARGO) test --workspace --release --locked
	@if [ -s target/skipped.txt ]; then sort -u target/skipped.txt; fi
